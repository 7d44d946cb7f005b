variable "count" {
  type    = number
  default = 1
}

variable "name" {
  type    = string
  default = "train"
}

job "example" {
  type = "batch"

  group "worker" {
    count = var.count
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
      driver = "muster"

      config {
        command = "train"
      }

      resources {
        cpu    = 100
        memory = 100

        device "muster/gang" {
          count = 4

          constraint {
            attribute = "${device.attr.gang}"
            value     = var.name
          }
        }
      }
    }
  }
}
