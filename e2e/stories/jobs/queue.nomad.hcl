# A gang of a queue that says how long it runs at most, and is asked for checkpoints only when it has to end.

variable "gang" {
  type = string
}

variable "queue" {
  type = string
}

variable "count" {
  type = number
}

variable "gpus" {
  type = number
}

variable "max_runtime" {
  type = string
}

variable "program" {
  type = string
}

variable "args" {
  type    = list(string)
  default = []
}

variable "checkpoint_path" {
  type = string
}

job "gang" {
  id   = var.gang
  name = var.gang
  type = "batch"

  group "worker" {
    count                 = var.count
    max_client_disconnect = "15m"

    meta {
      muster_queue       = var.queue
      muster_locality    = "any"
      muster_max_runtime = var.max_runtime
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
      driver       = "muster"
      kill_timeout = "20s"

      config {
        command = var.program
        args    = var.args

        checkpoint {
          signal  = "SIGUSR1"
          timeout = "5m"
          path    = var.checkpoint_path
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
