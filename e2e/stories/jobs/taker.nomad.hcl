# A job of any driver that asks for devices in whatever way, with or without a gang.

variable "name" {
  type = string
}

variable "count" {
  type    = number
  default = 1
}

variable "driver" {
  type    = string
  default = "raw_exec"
}

variable "device" {
  type    = string
  default = "muster/gang"
}

variable "gpus" {
  type    = number
  default = 1
}

variable "gang" {
  type        = string
  default     = ""
  description = "Value of the gang constraint; empty: none"
}

variable "priority" {
  type    = number
  default = 50
}

variable "nodes" {
  type        = string
  default     = ".*"
  description = "Regular expression of the names of the nodes that may be used"
}

variable "program" {
  type = string
}

variable "args" {
  type    = list(string)
  default = []
}

job "taker" {
  id       = var.name
  name     = var.name
  type     = "batch"
  priority = var.priority

  constraint {
    attribute = "${node.unique.name}"
    operator  = "regexp"
    value     = "^(${var.nodes})$"
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
      driver       = var.driver
      kill_timeout = "20s"

      config {
        command = var.program
        args    = var.args
      }

      resources {
        cpu    = 500
        memory = 128

        dynamic "device" {
          for_each = [var.device]
          iterator = ask
          labels   = [ask.value]
          content {
            count = var.gpus

            dynamic "constraint" {
              for_each = var.gang == "" ? [] : [var.gang]
              content {
                attribute = "${device.attr.gang}"
                value     = constraint.value
              }
            }
          }
        }
      }
    }
  }
}
