//! Elementwise programs as machine code that keeps all values in registers, where an interpreter stores the result of each
//! function.

#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::code::CodeMemory;
use ferroflow_base::{Result, internal, unimplemented_error};
use ferroflow_primitives::Isa;
use ferroflow_primitives::vector_program::VectorProgram;

/// Most inputs of a program that is compiled.
const MAX_INPUTS: usize = 16;
/// Lanes of the widest vector.
const MAX_LANES: usize = 16;
/// Most elements that an iteration of the loop computes.
const MAX_STEP: usize = 4 * MAX_LANES;

/// A number in all lanes of a vector of any width.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Splat([u32; MAX_LANES]);

/// What the generated function is called with: the address of each input, where the outputs go, how many steps there are,
/// and the constants.
#[cfg(target_arch = "x86_64")]
type Function = extern "sysv64" fn(*const *const f32, *mut f32, usize, *const Splat);
/// There is no code for other machines.
#[cfg(not(target_arch = "x86_64"))]
type Function = extern "C" fn(*const *const f32, *mut f32, usize, *const Splat);

/// Machine code, and what it reads.
struct Compiled {
    code: Vec<u8>,
    constants: Vec<Splat>,
    /// Elements that an iteration of the loop computes.
    step: usize,
}

/// Machine code of a [`VectorProgram`], for inputs of which some are one number.
///
/// ```
/// use ferroflow_jit::VectorCode;
/// use ferroflow_primitives::Isa;
/// use ferroflow_primitives::math::{BinaryOp, UnaryOp};
/// use ferroflow_primitives::vector_program::Recording;
///
/// let mut recording = Recording::new(Isa::current(), 2);
/// let product = recording.binary(BinaryOp::Mul, 0, 1).unwrap();
/// let result = recording.unary(UnaryOp::Relu, product).unwrap();
/// # if Isa::current() != Isa::Portable {
/// let code = VectorCode::compile(&recording.finish(result), &[false, true]).unwrap();
/// let mut out = [0.0; 19];
/// code.run(&[&[-3.0; 19], &[-2.0]], &mut out).unwrap();
/// assert_eq!(out, [6.0; 19]);
/// # }
/// ```
pub struct VectorCode {
    memory: CodeMemory,
    constants: Vec<Splat>,
    step: usize,
    is_scalar: Vec<bool>,
}

impl VectorCode {
    /// Compiles a program. `is_scalar` has an entry for each input.
    ///
    /// # Errors
    /// UNIMPLEMENTED if the machine does not have the program's instruction set, AVX2 or AVX-512, or the program needs too
    /// many registers or is so long that functions one by one are faster, RESOURCE_EXHAUSTED if there is too much code
    /// already.
    pub fn compile(program: &VectorProgram, is_scalar: &[bool]) -> Result<VectorCode> {
        if is_scalar.len() != program.n_inputs() || is_scalar.len() > MAX_INPUTS {
            return Err(unimplemented_error!("the program has too many inputs"));
        }
        if program.isa() > Isa::detect() {
            return Err(unimplemented_error!(
                "the machine does not have the program's instructions"
            ));
        }
        let compiled = match program.isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx512 => x86::compile(program, is_scalar)?,
            _ => return Err(unimplemented_error!("there is no code for these vectors")),
        };
        Ok(VectorCode {
            memory: CodeMemory::new(&compiled.code)?,
            constants: compiled.constants,
            step: compiled.step,
            is_scalar: is_scalar.to_vec(),
        })
    }

    /// Returns which inputs are one number.
    pub fn is_scalar(&self) -> &[bool] {
        &self.is_scalar
    }

    /// Computes the elements of `out`. An input has as many elements as `out`, or one if it is a scalar.
    ///
    /// # Errors
    /// INTERNAL if an input has another length.
    pub fn run(&self, inputs: &[&[f32]], out: &mut [f32]) -> Result<()> {
        let lengths = inputs.iter().zip(&self.is_scalar);
        let mut fits = lengths.map(|(input, is_scalar)| match is_scalar {
            true => input.len() == 1,
            false => input.len() == out.len(),
        });
        if inputs.len() != self.is_scalar.len() || !fits.all(|fits| fits) {
            return Err(internal!("an elementwise program got wrong inputs"));
        }
        let mut addresses = [std::ptr::null::<f32>(); MAX_INPUTS];
        for (address, input) in addresses.iter_mut().zip(inputs) {
            *address = input.as_ptr();
        }
        let n_steps = out.len() / self.step;
        if n_steps == 0 {
            self.run_padded(inputs, addresses, out);
            return Ok(());
        }
        // SAFETY: all inputs but scalars have as many elements as `out`, at least those of `n_steps`.
        unsafe { self.call(&addresses, out.as_mut_ptr(), n_steps) };
        if n_steps * self.step < out.len() {
            // The last step ends where the tensors do; some of it is computed again.
            let start = out.len() - self.step;
            for (i, input) in self.slices(inputs) {
                addresses[i] = input[start..].as_ptr();
            }
            // SAFETY: a step is left of all slices.
            unsafe { self.call(&addresses, out[start..].as_mut_ptr(), 1) };
        }
        Ok(())
    }

    /// The inputs that are not one number, with their positions.
    fn slices<'a>(&self, inputs: &'a [&'a [f32]]) -> impl Iterator<Item = (usize, &'a [f32])> {
        let all = inputs.iter().copied().enumerate();
        all.filter(|(i, _)| !self.is_scalar[*i])
    }

    /// Computes fewer elements than a step has.
    fn run_padded(
        &self,
        inputs: &[&[f32]],
        mut addresses: [*const f32; MAX_INPUTS],
        out: &mut [f32],
    ) {
        if out.is_empty() {
            return;
        }
        let mut padded = [[0.0; MAX_STEP]; MAX_INPUTS];
        for (i, input) in self.slices(inputs) {
            padded[i][..input.len()].copy_from_slice(input);
            addresses[i] = padded[i].as_ptr();
        }
        let mut result = [0.0; MAX_STEP];
        // SAFETY: `padded` and `result` hold a step each.
        unsafe { self.call(&addresses, result.as_mut_ptr(), 1) };
        out.copy_from_slice(&result[..out.len()]);
    }

    /// # Safety
    /// The address of each input is valid for reads of `n_steps` steps, which are one or more, or of one number if it is
    /// a scalar, and `out` for writes of as many steps; the memory is apart.
    unsafe fn call(&self, addresses: &[*const f32; MAX_INPUTS], out: *mut f32, n_steps: usize) {
        // SAFETY: `memory` holds a whole function of this signature, made by `compile` and never changed. It reads and
        // writes `n_steps` steps at these addresses, one number of each scalar, and its own constants.
        unsafe {
            let run: Function = std::mem::transmute(self.memory.start().cast::<()>());
            run(addresses.as_ptr(), out, n_steps, self.constants.as_ptr());
        }
    }
}
