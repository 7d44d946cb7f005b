# An ordinary job that takes most of one node's memory.

variable "node" {
  type = string
}

variable "memory" {
  type = number
}

variable "program" {
  type = string
}

job "hog" {
  type = "batch"

  constraint {
    attribute = "${node.unique.name}"
    value     = var.node
  }

  group "hog" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    task "hog" {
      driver = "raw_exec"

      config {
        command = "/bin/sleep"
        args    = ["600"]
      }

      resources {
        cpu    = 100
        memory = var.memory
      }
    }
  }
}
