# Copyright (c) The Muster Authors
# SPDX-License-Identifier: MPL-2.0

# One GPU: the smallest job that goes through Muster's queue. It counts to `steps`, saves where it is when it is asked
# to, and goes on from there in its next run.
#
#   muster validate one-gpu.nomad.hcl
#   nomad job run -detach one-gpu.nomad.hcl
#   muster gang one-gpu
#
# Without -detach, `nomad job run` reports "failed to place" while the job waits for its GPU. That is how waiting looks
# to Nomad: the GPU is offered to the job only when its turn has come.

variable "gang" {
  type        = string
  default     = "one-gpu"
  description = "The gang's name. No two jobs can have the same."
}

variable "steps" {
  type    = number
  default = 60
}

variable "checkpoints" {
  type        = string
  default     = "/tmp/muster/one-gpu"
  description = "Where the count is saved. The job may run on another node next time, so use a directory that all share."
}

variable "interval" {
  type    = string
  default = "10s"
}

job "one-gpu" {
  id          = var.gang
  datacenters = ["*"]

  # A batch job is done when its command ends well. Gangs are batch jobs.
  type = "batch"

  group "main" {
    count = 1

    # The next three blocks are the same in every Muster job. Together they leave it to Muster what happens after a
    # failure, since Nomad would treat each member on its own. Muster refuses a job without them and says why.
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

    # A node that is silent for a moment keeps its task. From Nomad 1.8 on: disconnect { lost_after = "15m" }.
    max_client_disconnect = "15m"

    task "count" {
      # The muster driver runs a command on the host, like raw_exec, and adds checkpoints and the GPU's device files.
      # Other drivers work, too: see docker.nomad.hcl.
      driver = "muster"

      # How long the task has for its last checkpoint when it is stopped. Nomad's own default is 5s.
      kill_timeout = "30s"

      env {
        STEPS       = var.steps
        CHECKPOINTS = var.checkpoints
      }

      config {
        command = "sh"
        args = ["-c", <<-EOT
          mkdir -p "$CHECKPOINTS"
          step=$(ls "$CHECKPOINTS" | sed -n 's/^step-0*//p' | tail -n 1)
          step=$((step + 0))

          # Give the checkpoint its name when it is complete, so that nobody sees half of one.
          save() {
            name=$(printf 'step-%06d' "$step")
            date > "$CHECKPOINTS/.$name" && mv "$CHECKPOINTS/.$name" "$CHECKPOINTS/$name"
            echo "saved $name"
          }
          trap save USR1

          # A CUDA program opens its GPU by itself. This one opens the device file, to show that it uses it.
          if { : < "$MUSTER_GPU_DEVICES"; } 2> /dev/null; then exec 9< "$MUSTER_GPU_DEVICES"; fi

          echo "GPU $CUDA_VISIBLE_DEVICES, from step $step"
          while [ "$step" -lt "$STEPS" ]; do
            sleep 1
            step=$((step + 1))
          done
          echo "done"
        EOT
        ]

        # Muster sends the signal at each interval, and before it stops the task. `path` is where it sees that a
        # checkpoint was finished: a new name in there that does not start with a dot.
        checkpoint {
          interval = var.interval
          signal   = "SIGUSR1"
          timeout  = "10s"
          path     = var.checkpoints
        }
      }

      resources {
        cpu    = 100
        memory = 64

        # The GPUs: asked for by the gang's name, so that Nomad gives the job what Muster has set aside for it.
        device "muster/gang" {
          count = 1

          constraint {
            attribute = "${device.attr.gang}"
            value     = var.gang
          }
        }
      }
    }
  }
}
