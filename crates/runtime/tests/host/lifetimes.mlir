// A value goes when its last reader is done, arguments in their order. QUEUES: s

// PRINTS: constructed vt.value(1)
// PRINTS: move constructed vt.value(1)
// PRINTS: constructed vt.value(2)
// PRINTS: move constructed vt.value(2)
// PRINTS: constructed vt.value(3)
// PRINTS: move constructed vt.value(3)
// PRINTS: destroyed vt.value(1)
// PRINTS: destroyed vt.value(2)
// PRINTS: print vt_value(3)
// PRINTS: destroyed vt.value(3)
// PRINTS: constructed vt.value(4)
// PRINTS: move constructed vt.value(4)
// PRINTS: destroyed vt.value(4)
func @linear() {
  %ch = tfrt.new.chain
  %v1 = "vt.constant"() {value = 1 : i32} : () -> !vt.value
  %v2 = "vt.constant"() {value = 2 : i32} : () -> !vt.value
  %sum = "vt.add"(%v1, %v2) : (!vt.value, !vt.value) -> !vt.value
  "vt.print"(%sum, %ch) : (!vt.value, !tfrt.chain) -> !tfrt.chain
  "vt.constant"() {value = 4 : i32} : () -> !vt.value
  tfrt.return
}
