# Copyright (c) The Muster Authors
# SPDX-License-Identifier: MPL-2.0

# A gang of two members with eight GPUs each that saves a checkpoint every five seconds.

variable "program" {
  type        = string
  description = "Stands in for a training program: it opens its GPUs and holds them."
}

variable "checkpoints" {
  type        = string
  description = "A directory that all nodes share."
}

job "finetune" {
  type = "batch"

  group "worker" {
    count                 = 2
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
      kill_timeout = "30s"

      config {
        command = var.program
        args    = ["-for", "18s", "-checkpoint", var.checkpoints]

        checkpoint {
          interval = "5s"
          signal   = "SIGUSR1"
          timeout  = "10s"
          path     = var.checkpoints
        }
      }

      resources {
        cpu    = 500
        memory = 128

        device "muster/gang" {
          count = 8

          constraint {
            attribute = "${device.attr.gang}"
            value     = "finetune"
          }
        }
      }
    }
  }
}
