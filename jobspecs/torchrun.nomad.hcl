# Copyright (c) The Muster Authors
# SPDX-License-Identifier: MPL-2.0

# Distributed training with PyTorch: `members` nodes with `gpus` GPUs each start together or not at all. torchrun needs
# no rendezvous options: Muster sets its PET_* variables, the address of the first member among them.
#
# one-gpu.nomad.hcl explains the blocks that every job has.

variable "gang" {
  type    = string
  default = "torchrun"
}

variable "members" {
  type    = number
  default = 2
}

variable "gpus" {
  type        = number
  default     = 8
  description = "GPUs of each member; torchrun starts one process for each."
}

variable "torchrun" {
  type    = string
  default = "torchrun"
}

variable "script" {
  type        = string
  default     = "/opt/muster/jobspecs/scripts/train.py"
  description = "The training program, at the same path on each node."
}

variable "arguments" {
  type    = list(string)
  default = ["--steps=1000", "--step-seconds=0.1"]
}

variable "checkpoints" {
  type        = string
  default     = "/tmp/muster/torchrun"
  description = "A directory that all nodes share."
}

variable "interval" {
  type    = string
  default = "15m"
}

variable "locality" {
  type    = string
  default = "any"
}

variable "cpu" {
  type        = number
  default     = 500
  description = "MHz of each member."
}

variable "memory" {
  type        = number
  default     = 1024
  description = "MB of each member."
}

job "torchrun" {
  id          = var.gang
  datacenters = ["*"]
  type        = "batch"

  group "worker" {
    # The gang's size. Change it and run the job again: Muster then plans the gang anew.
    count = var.members

    # What Muster is asked for beside the GPUs. All of it can be left out. Think before you change it while the job
    # runs: Nomad restarts a group whose meta is edited.
    meta {
      # "required": wait until each member's GPUs are joined by NVLink. "preferred": take them if they are free.
      muster_nvlink = "preferred"

      # How close the members must be: "node", a level that the cluster knows such as "rack", or "any".
      muster_locality = var.locality

      # How long to wait for such a place before the next wider level will do, too; "auto" to wait for as long as it costs
      # less than the slower run; "never" to insist on it.
      muster_relax_after = "10m"

      # How much the members talk to one another, and so how much distance costs them: "none", "low" or "high". Leave it
      # out if you don't know.
      muster_comm = "high"
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

    max_client_disconnect = "15m"

    task "train" {
      # The muster driver holds all processes back until the last member is ready to start, so that none of them runs
      # into a time-out, and a member that is done waits for the others.
      driver       = "muster"
      kill_timeout = "30s"

      env {
        OMP_NUM_THREADS = "1"

        # torchrun of Debian 12 (PyTorch 1.13 on Python 3.11) can't read its own defaults of these two. Elsewhere they
        # can go.
        PET_REDIRECTS = "9:1"
        PET_TEE       = "9:1"
      }

      config {
        command = var.torchrun
        args    = concat([var.script, "--checkpoints=${var.checkpoints}"], var.arguments)

        # The signal goes to the training processes, not to torchrun, which would not know what to do with it.
        checkpoint {
          interval = var.interval
          signal   = "SIGUSR1"
          timeout  = "25s"
          path     = var.checkpoints
        }
      }

      resources {
        cpu    = var.cpu
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
