# The virtual clusters of the Philly trace: 1.1 times their mean load from 2017-10-01 to 11-17, in whole machines of 8 GPUs.
queue "6214e9" {
  quota = 408
}
queue "ee9e8c" {
  quota = 384
}
queue "b436b2" {
  quota = 328
}
queue "7f04ca" {
  quota = 216
}
queue "6c71a0" {
  quota = 144
}
queue "0e4a51" {
  quota = 120
}
queue "e13805" {
  quota = 80
}
queue "2869ce" {
  quota = 80
}
queue "11cb48" {
  quota = 56
}
queue "103959" {
  quota = 40
}
queue "ed69ec" {
  quota = 24
}
queue "51b7ef" {
  quota = 8
}
queue "795a4c" {
  quota = 8
}
queue "23dbec" {
  quota = 8
}
queue "925e2b" {
  quota = 8
}
