job "resnet50" {
  type = "batch"
  group "worker" {
    count = 4
    meta {
      muster_locality = "rack"
    }
    max_client_disconnect = "15m"
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      unlimited      = true
      delay_function = "constant"
    }
    task "train" {
      driver       = "muster"
      kill_timeout = "30s"
      config {
        command = "torchrun"
        args    = ["train.py"]
        checkpoint {
          interval = "15m"
          timeout  = "30s"
          path     = "/mnt/ckpt"
        }
      }
      resources {
        cpu = 8000
        device "muster/gang" {
          count = 8
          constraint {
            attribute = "${device.attr.gang}"
            value     = "resnet50"
          }
        }
      }
    }
  }
}
