// `tfrt.case` and `tfrt.once`, values that stand for others, errors of chains and handles. QUEUES: all

func @plus_two(%ch: !tfrt.chain, %x: i32) -> (!tfrt.chain, i32) {
  %n = tfrt.constant.i32 2
  %y = tfrt.add.i32 %x, %n
  tfrt.return %ch, %y : !tfrt.chain, i32
}

func @plus_three(%ch: !tfrt.chain, %x: i32) -> (!tfrt.chain, i32) {
  %n = tfrt.constant.i32 3
  %y = tfrt.add.i32 %x, %n
  tfrt.return %ch, %y : !tfrt.chain, i32
}

func @pick(%i: i32) -> i32 {
  %ch = tfrt.new.chain
  %x = tfrt.constant.i32 40
  %ch1, %y = tfrt.case %i [@plus_two, @plus_three] (%ch, %x) : (i32) -> (i32)
  tfrt.return %y : i32
}

// An index outside the branches means the last one; an index may come late.
// PRINTS: 'cases' returned 42,43,43,43,42
func @cases() -> (i32, i32, i32, i32, i32) {
  %i0 = tfrt.constant.i32 0
  %i1 = tfrt.constant.i32 1
  %i2 = tfrt.constant.i32 7
  %i3 = tfrt.constant.i32 -1
  %i4 = "tfrt_test.async_constant.i32"() {value = 0 : i32} : () -> i32
  %0 = tfrt.call @pick(%i0) : (i32) -> i32
  %1 = tfrt.call @pick(%i1) : (i32) -> i32
  %2 = tfrt.call @pick(%i2) : (i32) -> i32
  %3 = tfrt.call @pick(%i3) : (i32) -> i32
  %4 = tfrt.call @pick(%i4) : (i32) -> i32
  tfrt.return %0, %1, %2, %3, %4 : i32, i32, i32, i32, i32
}

// PRINTS: 'case_of_an_error' returned <<error: something bad happened>>
func @case_of_an_error() -> i32 {
  %i = "tfrt_test.fail"() : () -> i32 // expected-error {{something bad happened}}
  %0 = tfrt.call @pick(%i) : (i32) -> i32
  tfrt.return %0 : i32
}

// The second call gets what the first one computed.
// PRINTS: 'once' returned 1,1
func @once() -> (i32, i32) {
  %0 = tfrt.constant.i32 0
  %1 = tfrt.once @plus_one(%0) : (i32) -> (i32)
  %2 = tfrt.once @plus_one(%1) : (i32) -> (i32)
  tfrt.return %1, %2 : i32, i32
}

func @plus_one(%x: i32) -> i32 {
  %one = tfrt.constant.i32 1
  %y = tfrt.add.i32 %x, %one
  tfrt.return %y : i32
}

// A chain of anything.
// PRINTS: 'merged' returned !tfrt.chain value
func @merged() -> !tfrt.chain {
  %x = tfrt.constant.i32 0
  %ch = tfrt.new.chain
  %all = tfrt.merge.chains %x, %ch : i32, !tfrt.chain
  tfrt.return %all : !tfrt.chain
}

// PRINTS: 'error_chain' returned <<error: error chain>>
func @error_chain() -> !tfrt.chain {
  %ch = tfrt.new.chain
  // expected-error @+1 {{error chain}}
  %bad = "tfrt_test.error_chain"(%ch) : (!tfrt.chain) -> !tfrt.chain
  tfrt.return %bad : !tfrt.chain
}

// The value is read once more behind the question whether it is the only one.
// PRINTS: false
// PRINTS: int32 = 100
func @shared() {
  %ch = tfrt.new.chain
  %a = tfrt.constant.i32 100
  %i = "tfrt_test.make_indirect"(%a) : (i32) -> (i32)
  %alone = "tfrt_test.get_uniqueness"(%i) : (i32) -> (i1)
  %c1 = "tfrt_test.print_bool"(%ch, %alone) : (!tfrt.chain, i1) -> (!tfrt.chain)
  %c2 = tfrt.print.i32 %a, %c1
  tfrt.return
}

// PRINTS: true
func @alone() {
  %ch = tfrt.new.chain
  %a = tfrt.constant.i32 100
  %i = "tfrt_test.make_indirect"(%a) : (i32) -> (i32)
  %alone = "tfrt_test.get_uniqueness"(%i) : (i32) -> (i1)
  %c1 = "tfrt_test.print_bool"(%ch, %alone) : (!tfrt.chain, i1) -> (!tfrt.chain)
  tfrt.return
}

// PRINTS: 'number_of_a_handle' returned 5
func @number_of_a_handle() -> i32 {
  %h = "corert.create_dense_tensor.i32"() {shape = [1], values = [5 : i32]} : () -> !corert.tensorhandle
  %n = corert.tensorhandle_to_int32 %h
  tfrt.return %n : i32
}

// PRINTS: 'bad_handle' returned <<error: invalid tensorhandle>>
func @bad_handle() -> i32 {
  // expected-error @+1 {{invalid tensorhandle}}
  %h = "tfrt_test.error_tensorhandle"() : () -> !corert.tensorhandle
  %n = corert.tensorhandle_to_int32 %h
  tfrt.return %n : i32
}
