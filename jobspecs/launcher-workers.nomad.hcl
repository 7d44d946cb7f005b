# Copyright (c) The Muster Authors
# SPDX-License-Identifier: MPL-2.0

# One gang of two groups: a launcher that hands out work, and workers with more GPUs that do it. All of them start
# together or not at all. Ranks follow the order in this file, so the launcher is rank 0, whose address all members
# know.
#
# one-gpu.nomad.hcl explains the blocks that every job has, torchrun.nomad.hcl the choices for several members.

variable "gang" {
  type    = string
  default = "pool"
}

variable "workers" {
  type    = number
  default = 2
}

variable "gpus" {
  type        = number
  default     = 2
  description = "GPUs of each worker; the launcher has one."
}

variable "python" {
  type    = string
  default = "/usr/bin/python3"
}

variable "script" {
  type    = string
  default = "/opt/muster/jobspecs/scripts/pool.py"
}

variable "items" {
  type    = number
  default = 200
}

variable "checkpoints" {
  type        = string
  default     = "/tmp/muster/pool"
  description = "A directory that all nodes share."
}

job "launcher-workers" {
  id          = var.gang
  datacenters = ["*"]
  type        = "batch"

  # In the job's meta it holds for both groups. Those of one gang must agree on all of it.
  meta {
    muster_locality = "any"
  }

  # Said once here, it holds for both groups, too.
  reschedule {
    attempts       = 0
    unlimited      = true
    delay          = "5s"
    delay_function = "constant"
  }

  group "launcher" {
    count = 1

    restart {
      attempts = 0
      mode     = "fail"
    }

    max_client_disconnect = "15m"

    task "launch" {
      driver       = "muster"
      kill_timeout = "30s"

      config {
        command = var.python
        args    = [var.script, "launcher", "--items=${var.items}", "--checkpoints=${var.checkpoints}"]

        checkpoint {
          interval = "1m"
          signal   = "SIGUSR1"
          timeout  = "10s"
          path     = var.checkpoints
        }
      }

      resources {
        cpu    = 100
        memory = 128

        device "muster/gang" {
          count = 1

          # Each group of a gang names itself: <gang>/<group>. With one name for both, Nomad could put a worker on the
          # launcher's GPU.
          constraint {
            attribute = "${device.attr.gang}"
            value     = "${var.gang}/launcher"
          }
        }
      }
    }
  }

  group "worker" {
    count = var.workers

    restart {
      attempts = 0
      mode     = "fail"
    }

    max_client_disconnect = "15m"

    # No checkpoint block: what a worker has not handed in is done again by another.
    task "work" {
      driver       = "muster"
      kill_timeout = "30s"

      config {
        command = var.python
        args    = [var.script, "worker"]
      }

      resources {
        cpu    = 100
        memory = 128

        device "muster/gang" {
          count = var.gpus

          constraint {
            attribute = "${device.attr.gang}"
            value     = "${var.gang}/worker"
          }
        }
      }
    }
  }
}
