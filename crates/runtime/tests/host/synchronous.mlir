// Functions of the engine `sync`, and calls of them.

// PRINTS: 'numbers' returned 43,1764
func @numbers() -> (i32, i32) attributes {tfrt.sync} {
  %a = tfrt.constant_s.i32 42
  %b = tfrt.constant_s.i32 1
  %sum = tfrt.add_s.i32 %a, %b
  %product = tfrt.mul_s.i32 %a, %a
  tfrt.return %sum, %product : i32, i32
}

func @add(%a: i32, %b: i32) -> i32 attributes {tfrt.sync} {
  %sum = tfrt.add_s.i32 %a, %b
  tfrt.return %sum : i32
}

// PRINTS: 'from_outside' returned 7
func @from_outside() -> i32 {
  %three = tfrt.constant.i32 3
  %four = tfrt.constant.i32 4
  %sum = "tfrt_test.invoke_sync_function.i32_i32.i32"(%three, %four) {callee = @add} : (i32, i32) -> i32
  tfrt.return %sum : i32
}

// PRINTS: 'failure' returned <<error: something bad happened>>
func @failure() -> i32 attributes {tfrt.sync} {
  // expected-error @+1 {{something bad happened}}
  %x = "tfrt_test.fail_s"() : () -> i32
  tfrt.return %x : i32
}
