# Copyright (c) The Muster Authors
# SPDX-License-Identifier: MPL-2.0

# A container with the GPUs of a slot. Muster gives them to any of Nomad's task drivers: the container sees its GPUs only.
# What the muster driver adds is missing here: no member waits for the others to start or to end. For one member, as
# here, that makes no difference.
#
# one-gpu.nomad.hcl explains the blocks that every job has.

variable "gang" {
  type    = string
  default = "docker"
}

variable "members" {
  type    = number
  default = 1
}

variable "gpus" {
  type    = number
  default = 1
}

variable "image" {
  type        = string
  default     = "busybox:1.36"
  description = "With a tag other than latest, since Nomad fetches latest anew each time."
}

variable "seconds" {
  type        = number
  default     = 30
  description = "How long the container runs."
}

job "docker" {
  id          = var.gang
  datacenters = ["*"]
  type        = "batch"

  group "container" {
    count = var.members

    meta {
      # Other drivers have no checkpoint block. This is the signal that Muster sends before it stops the task.
      muster_checkpoint_signal = "SIGUSR1"
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
      driver       = "docker"
      kill_timeout = "30s"

      env {
        SECONDS_TO_RUN = var.seconds
      }

      config {
        image = var.image

        # The members of a gang reach one another at their nodes' addresses. For NCCL's sake, too, use the host's network.
        network_mode = "host"

        # With GPUs Nomad's docker driver uses the runtime "nvidia" (its option nvidia_runtime), from NVIDIA's container
        # toolkit.
        command = "sh"
        args = ["-c", <<-EOT
          trap 'echo "checkpoint"' USR1
          echo "member $MUSTER_RANK of $MUSTER_SIZE, GPUs $NVIDIA_VISIBLE_DEVICES"
          ls /dev | grep nvidia
          second=0
          while [ "$second" -lt "$SECONDS_TO_RUN" ]; do
            sleep 1
            second=$((second + 1))
          done
          echo "done"
        EOT
        ]
      }

      resources {
        cpu    = 100
        memory = 64

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
