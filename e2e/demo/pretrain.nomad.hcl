# Copyright (c) The Muster Authors
# SPDX-License-Identifier: MPL-2.0

# A gang of three members with eight GPUs each: it takes every GPU of the demonstration.

variable "program" {
  type        = string
  description = "Stands in for a training program: it opens its GPUs and holds them."
}

job "pretrain" {
  type = "batch"

  group "worker" {
    count                 = 3
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
        args    = ["-for", "15s"]
      }

      resources {
        cpu    = 500
        memory = 128

        device "muster/gang" {
          count = 8

          constraint {
            attribute = "${device.attr.gang}"
            value     = "pretrain"
          }
        }
      }
    }
  }
}
