# The virtual clusters of the Philly trace: 1.1 times their mean load from 2017-10-01 to 11-17, in whole machines of 8 GPUs.
queue "vc-6214e9" {
  quota = 408
}
queue "vc-ee9e8c" {
  quota = 384
}
queue "vc-b436b2" {
  quota = 328
}
queue "vc-7f04ca" {
  quota = 216
}
queue "vc-6c71a0" {
  quota = 144
}
queue "vc-0e4a51" {
  quota = 120
}
queue "vc-e13805" {
  quota = 80
}
queue "vc-2869ce" {
  quota = 80
}
queue "vc-11cb48" {
  quota = 56
}
queue "vc-103959" {
  quota = 40
}
queue "vc-ed69ec" {
  quota = 24
}
queue "vc-51b7ef" {
  quota = 8
}
queue "vc-795a4c" {
  quota = 8
}
queue "vc-23dbec" {
  quota = 8
}
queue "vc-925e2b" {
  quota = 8
}
