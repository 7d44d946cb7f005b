# A gang of any shape that is asked for a checkpoint at a declared interval.

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

variable "checkpoint_path" {
  type = string
}

variable "checkpoint_interval" {
  type = string
}

variable "checkpoint_timeout" {
  type    = string
  default = "15s"
}

job "gang" {
  id   = var.gang
  name = var.gang
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
      driver       = "muster"
      kill_timeout = "20s"

      config {
        command = var.program
        args    = var.args

        checkpoint {
          interval = var.checkpoint_interval
          signal   = "SIGUSR1"
          timeout  = var.checkpoint_timeout
          path     = var.checkpoint_path
        }
      }

      resources {
        cpu    = 500
        memory = 128

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
