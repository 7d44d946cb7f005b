# A gang of two groups with one member each, which hold their GPUs for a while and end.

variable "gang" {
  type = string
}

variable "first" {
  type        = number
  description = "GPUs of the first group's member"
}

variable "second" {
  type        = number
  description = "GPUs of the second group's member"
}

variable "program" {
  type = string
}

variable "nodes" {
  type        = string
  description = "Regular expression of the names of the nodes that may be used"
}

job "groups" {
  id   = var.gang
  name = var.gang
  type = "batch"

  constraint {
    attribute = "${node.unique.name}"
    operator  = "regexp"
    value     = "^(${var.nodes})$"
  }

  dynamic "group" {
    for_each = [["first", var.first], ["second", var.second]]
    labels   = [group.value[0]]
    content {
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
          args    = ["-for", "4s"]
        }

        resources {
          cpu    = 500
          memory = 128

          device "muster/gang" {
            count = group.value[1]

            constraint {
              attribute = "${device.attr.gang}"
              value     = "${var.gang}/${group.value[0]}"
            }
          }
        }
      }
    }
  }
}
