# Copyright (c) The Muster Authors
# SPDX-License-Identifier: MPL-2.0

# An MPI program over several nodes with Open MPI 4, without ssh between them. Each member runs mpi_launch.py: the first
# one starts mpirun, and the others wait for what mpirun would have started through ssh. Open MPI then runs one process
# for each GPU.
#
# On each node: Open MPI, Python 3, mpi_launch.py, and your program; here scripts/hello_mpi.c, built by mpicc.
# one-gpu.nomad.hcl explains the blocks that every job has, torchrun.nomad.hcl the choices for several members.

variable "gang" {
  type    = string
  default = "mpi"
}

variable "members" {
  type    = number
  default = 2
}

variable "gpus" {
  type        = number
  default     = 4
  description = "GPUs, and so processes, of each member."
}

variable "launcher" {
  type    = string
  default = "/opt/muster/jobspecs/scripts/mpi_launch.py"
}

variable "python" {
  type    = string
  default = "/usr/bin/python3"
}

variable "program" {
  type        = list(string)
  default     = ["/opt/muster/bin/hello_mpi", "100", "0.1"]
  description = "The MPI program and its arguments."
}

job "mpi" {
  id          = var.gang
  datacenters = ["*"]
  type        = "batch"

  group "rank" {
    count = var.members

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

    task "mpi" {
      driver       = "muster"
      kill_timeout = "30s"

      # The members find one another by variables that Muster sets: MUSTER_RANK, MUSTER_HOSTS_FILE (a line for each
      # member), MUSTER_MASTER_ADDR and MUSTER_MASTER_PORT. A program that catches a signal to save its state can have a
      # checkpoint block here, as in one-gpu.nomad.hcl.
      config {
        command = var.python
        args    = concat([var.launcher], var.program)
      }

      resources {
        cpu    = 200
        memory = 256

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
