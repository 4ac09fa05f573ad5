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

// PRINTS: 'called' returned 7
func @called() -> i32 {
  %three = tfrt.constant.i32 3
  %four = tfrt.constant.i32 4
  %sum = tfrt.call @add(%three, %four) : (i32, i32) -> (i32)
  tfrt.return %sum : i32
}

// PRINTS: 'called_late' returned 8
func @called_late() -> i32 {
  %three = tfrt.constant.i32 3
  %four = "tfrt_test.async_add.i32"(%three, %three) : (i32, i32) -> i32
  %two = tfrt.constant.i32 2
  %sum = tfrt.call @add(%four, %two) : (i32, i32) -> (i32)
  tfrt.return %sum : i32
}

// PRINTS: 'called_with_error' returned <<error: something bad happened>>
func @called_with_error() -> i32 {
  // expected-error @+1 {{something bad happened}}
  %bad = "tfrt_test.fail"() : () -> i32
  %two = tfrt.constant.i32 2
  %sum = tfrt.call @add(%bad, %two) : (i32, i32) -> (i32)
  tfrt.return %sum : i32
}

func @fails(%a: i32) -> i32 attributes {tfrt.sync} {
  // expected-error @+1 {{something bad happened}}
  %x = "tfrt_test.fail_s"() : () -> i32
  tfrt.return %x : i32
}

// PRINTS: 'fails_inside' returned <<error: something bad happened>>
func @fails_inside() -> i32 {
  %two = tfrt.constant.i32 2
  %sum = tfrt.call @fails(%two) : (i32) -> (i32)
  tfrt.return %sum : i32
}
