job "big" {
  type = "batch"
  meta {
    muster_queue = "research"
  }
  reschedule {
    unlimited      = true
    delay_function = "constant"
  }
  group "launcher" {
    max_client_disconnect = "15m"
    restart {
      attempts = 0
    }
    task "launch" {
      driver = "muster"
      config {
        command = "launch"
      }
      resources {
        device "muster/gang" {
          constraint {
            attribute = "${device.attr.gang}"
            value     = "big/launcher"
          }
        }
      }
    }
  }
  group "worker" {
    count = 8
    max_client_disconnect = "15m"
    restart {
      attempts = 0
    }
    task "work" {
      driver = "muster"
      config {
        command = "work"
      }
      resources {
        device "muster/gang" {
          count = 8
          constraint {
            attribute = "${device.attr.gang}"
            value     = "big/worker"
          }
        }
      }
    }
  }
}
