# A gang of any shape, whose members hold their GPUs for a while and end.

variable "gang" {
  type = string
}

variable "count" {
  type = number
}

variable "gpus" {
  type = number
}

variable "program" {
  type = string
}

variable "args" {
  type    = list(string)
  default = []
}

variable "nodes" {
  type        = string
  default     = ""
  description = "Regular expression of the names of the nodes that may be used; empty: all"
}

variable "job" {
  type        = string
  default     = ""
  description = "The job's ID; empty: the gang's name"
}

variable "locality" {
  type    = string
  default = "any"
}

variable "relax_after" {
  type    = string
  default = "10m"
}

variable "driver" {
  type    = string
  default = "muster"
}

variable "memory" {
  type        = number
  default     = 128
  description = "MB of each member"
}

job "gang" {
  id   = var.job == "" ? var.gang : var.job
  name = var.job == "" ? var.gang : var.job
  type = "batch"

  dynamic "constraint" {
    for_each = var.nodes == "" ? [] : [var.nodes]
    content {
      attribute = "${node.unique.name}"
      operator  = "regexp"
      value     = "^(${constraint.value})$"
    }
  }

  group "worker" {
    count                 = var.count
    max_client_disconnect = "15m"

    meta {
      muster_locality    = var.locality
      muster_relax_after = var.relax_after
    }

    restart {
      attempts = 0
      mode     = "fail"
    }

    reschedule {
      attempts       = 0
      unlimited      = true
      delay          = "5s"
      delay_function = "constant"
    }

    task "train" {
      driver       = var.driver
      kill_timeout = "20s"

      config {
        command = var.program
        args    = var.args
      }

      resources {
        cpu    = 500
        memory = var.memory

        device "muster/gang" {
          count = var.gpus

          constraint {
            attribute = "${device.attr.gang}"
            value     = var.gang
          }
        }
      }
    }
  }
}
