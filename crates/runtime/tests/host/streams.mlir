// Costs decide what runs on one thread; names of places; which others have a value.
// LOSES: costs and names. QUEUES: s

module attributes {tfrt.cost_threshold = 10 : i64} {

// Cheap kernels run on one thread, the latest that became ready first: 2 comes right behind 0.
// PRINTS: id: 0
// PRINTS: id: 2
// PRINTS: id: 1
// PRINTS: 'latest_first' returned !tfrt.chain value
func @latest_first() -> !tfrt.chain {
  %c = tfrt.constant.i32 1
  %a = tfrt_test.test_cost %c {id = 0 : i64, _tfrt_cost = 1 : i64} : i32
  %b = tfrt_test.test_cost %c {id = 1 : i64, _tfrt_cost = 1 : i64} : i32
  %d = tfrt_test.test_cost %a {id = 2 : i64, _tfrt_cost = 1 : i64} : i32
  %ch = tfrt.merge.chains %b, %d : i32, i32
  tfrt.return %ch : !tfrt.chain
}

// What costs enough becomes a task and comes later, whatever it was written before.
// PRINTS: id: 1
// PRINTS: id: 0
// PRINTS: 'dear_later' returned !tfrt.chain value
func @dear_later() -> !tfrt.chain {
  %c = tfrt.constant.i32 1
  %a = tfrt_test.test_cost %c {id = 0 : i64, _tfrt_cost = 10 : i64} : i32
  %b = tfrt_test.test_cost %c {id = 1 : i64, _tfrt_cost = 20 : i64} : i32
  %ch = tfrt.merge.chains %a, %b : i32, i32
  tfrt.return %ch : !tfrt.chain
}

// PRINTS: here
// PRINTS: one
// PRINTS: there
// PRINTS: Kernel has no debug info
// PRINTS: later
func @names() {
  %c0 = tfrt.new.chain
  %c1 = "tfrt_test.print_debug_info"(%c0) : (!tfrt.chain) -> !tfrt.chain loc("here")
  %c2 = "tfrt_test.print_debug_info"(%c1) : (!tfrt.chain) -> !tfrt.chain loc(fused["f.py":1:2, "one", "two"])
  %c3 = "tfrt_test.print_debug_info"(%c2) : (!tfrt.chain) -> !tfrt.chain loc(callsite("there" at "f.py":3:4))
  %c4 = "tfrt_test.print_debug_info"(%c3) : (!tfrt.chain) -> !tfrt.chain loc("f.py":5:6)
  %c5 = "tfrt_test.print_debug_info"(%c4) : (!tfrt.chain) -> !tfrt.chain loc(#later)
  tfrt.return
}

}

#later = loc("later"("f.py":7:8))
