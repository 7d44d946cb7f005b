# A gang with any task driver, restart block and template.

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

variable "driver" {
  type    = string
  default = "muster"
}

variable "restarts" {
  type    = number
  default = 0
}

variable "template" {
  type        = string
  default     = ""
  description = "Text of a template whose changes restart the task; empty: there is none"
}

job "gang" {
  id   = var.gang
  name = var.gang
  type = "batch"

  group "worker" {
    count                 = var.count
    max_client_disconnect = "15m"

    restart {
      attempts = var.restarts
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

      dynamic "template" {
        for_each = var.template == "" ? [] : [var.template]
        content {
          data        = template.value
          destination = "local/settings"
          change_mode = "restart"
          splay       = "0s"
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
