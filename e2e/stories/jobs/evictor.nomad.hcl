# A system job that takes the memory of one node from jobs of lower priority.

variable "node" {
  type = string
}

variable "memory" {
  type = number
}

job "evictor" {
  type     = "system"
  priority = 90

  constraint {
    attribute = "${node.unique.name}"
    value     = var.node
  }

  group "evictor" {
    task "sleep" {
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
