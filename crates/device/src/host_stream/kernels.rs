//! Functions that host streams launch: Rust functions on byte slices.

use crate::backend::Grid;
use ferroflow_base::{Result, invalid_argument, not_found};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// An argument of a host kernel.
pub enum Operand<'a> {
    /// Memory that the kernel reads.
    Read(&'a [u8]),
    /// Memory that the kernel reads and writes.
    Write(&'a mut [u8]),
    /// A number, little endian; the bytes behind `len` do not count.
    Number {
        /// Its bytes.
        bytes: [u8; 8],
        /// How many count.
        len: u8,
    },
}

impl Operand<'_> {
    fn number<const N: usize>(&self) -> Result<[u8; N]> {
        match self {
            Operand::Number { bytes, len } if usize::from(*len) == N => {
                let bytes = bytes.first_chunk::<N>();
                bytes.copied().ok_or_else(|| wrong("a number"))
            }
            _ => Err(wrong("a number of another type")),
        }
    }

    /// The value of a number.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the argument is not such a number.
    pub fn i32(&self) -> Result<i32> {
        self.number().map(i32::from_le_bytes)
    }

    /// The value of a number.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the argument is not such a number.
    pub fn f32(&self) -> Result<f32> {
        self.number().map(f32::from_le_bytes)
    }

    /// The bytes of memory.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the argument is a number.
    pub fn bytes(&self) -> Result<&[u8]> {
        match self {
            Operand::Read(bytes) => Ok(bytes),
            Operand::Write(bytes) => Ok(bytes),
            Operand::Number { .. } => Err(wrong("memory")),
        }
    }

    /// The bytes of memory that is written.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the kernel does not declare that it writes it.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        match self {
            Operand::Write(bytes) => Ok(bytes),
            _ => Err(wrong("memory to write")),
        }
    }
}

#[cold]
fn wrong(expected: &str) -> ferroflow_base::Status {
    invalid_argument!("an argument of the kernel is not {expected}")
}

type Run = dyn Fn(&Grid, &mut [Operand]) -> Result<()> + Send + Sync;

/// A function that host streams launch. It computes for the whole grid.
#[derive(Clone)]
pub struct HostKernel {
    pub(crate) run: Arc<Run>,
    pub(crate) writes: Arc<[usize]>,
}

impl HostKernel {
    /// A kernel that writes the arguments at these positions, and reads the others.
    pub fn new(
        writes: &[usize],
        run: impl Fn(&Grid, &mut [Operand]) -> Result<()> + Send + Sync + 'static,
    ) -> HostKernel {
        HostKernel {
            run: Arc::new(run),
            writes: writes.into(),
        }
    }
}

/// The functions that modules of host streams may contain, by name.
#[derive(Default)]
pub struct HostKernels(RwLock<HashMap<String, HostKernel>>);

impl HostKernels {
    /// Adds a kernel, or replaces it.
    pub fn add(&self, name: &str, kernel: HostKernel) {
        let mut kernels = self.0.write().unwrap_or_else(PoisonError::into_inner);
        kernels.insert(name.to_string(), kernel);
    }

    /// Returns a kernel.
    ///
    /// # Errors
    /// NOT_FOUND if there is none of that name.
    pub fn get(&self, name: &str) -> Result<HostKernel> {
        let kernels = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let kernel = kernels.get(name).cloned();
        kernel.ok_or_else(|| not_found!("no host kernel '{name}' is registered"))
    }

    /// Elementwise kernels: `empty()`, `add_f32(n, x, y)`, `mul_f32(n, x, y)`, `axpy_f32(n, a, x, y)`, which
    /// write `y`.
    pub fn with_shipped() -> HostKernels {
        let kernels = HostKernels::default();
        kernels.add("empty", HostKernel::new(&[], |_, _| Ok(())));
        let binary = |f: fn(f32, f32) -> f32| {
            HostKernel::new(&[2], move |_, args| {
                let [n, x, y] = args else {
                    return Err(wrong("one of three"));
                };
                each(n.i32()?, x.bytes()?, y.bytes_mut()?, f)
            })
        };
        kernels.add("add_f32", binary(|x, y| x + y));
        kernels.add("mul_f32", binary(|x, y| x * y));
        let axpy = HostKernel::new(&[3], |_, args| {
            let [n, a, x, y] = args else {
                return Err(wrong("one of four"));
            };
            let a = a.f32()?;
            each(n.i32()?, x.bytes()?, y.bytes_mut()?, |x, y| a.mul_add(x, y))
        });
        kernels.add("axpy_f32", axpy);
        kernels
    }
}

/// Computes `y[i] = f(x[i], y[i])` for `n` numbers.
fn each(n: i32, x: &[u8], y: &mut [u8], f: impl Fn(f32, f32) -> f32) -> Result<()> {
    let n = usize::try_from(n).unwrap_or(0);
    let (x, y) = (x.as_chunks::<4>().0, y.as_chunks_mut::<4>().0);
    let (Some(x), Some(y)) = (x.get(..n), y.get_mut(..n)) else {
        return Err(invalid_argument!(
            "an illegal memory access: {n} numbers do not fit the buffers"
        ));
    };
    for (x, y) in x.iter().zip(y) {
        *y = f(f32::from_le_bytes(*x), f32::from_le_bytes(*y)).to_le_bytes();
    }
    Ok(())
}

/// Names of functions, and names and sizes of global variables.
pub(crate) type Symbols = (Vec<String>, Vec<(String, usize)>);

/// The names of the functions of a module's text, and its global variables with their sizes.
///
/// # Errors
/// INVALID_ARGUMENT if the text is not PTX, as far as its directives tell.
pub(crate) fn symbols(image: &str) -> Result<Symbols> {
    if !image.trim_start().starts_with(".version") {
        return Err(invalid_argument!(
            "device kernel image is invalid: the text does not begin with .version"
        ));
    }
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    let name = |text: &str| text.split(|c| !is_name(c)).next().map(str::to_string);
    let entries = image.split(".entry").skip(1);
    let functions = entries.filter_map(|rest| name(rest.trim_start())).collect();
    let mut globals = Vec::new();
    let declarations = image
        .split([';', '\n'])
        .filter_map(|line| line.rsplit_once('['));
    for (head, size) in declarations.filter(|(h, _)| h.contains(".global") || h.contains(".const"))
    {
        let size = size.split(']').next().and_then(|s| s.trim().parse().ok());
        let element = head.split_whitespace().find_map(|word| {
            let digits = word.trim_start_matches(['.', 'b', 's', 'u', 'f']);
            word.starts_with('.')
                .then(|| digits.parse::<usize>().ok())?
        });
        let element = element.unwrap_or(8) / 8;
        if let (Some(size), Some(name)) = (size, head.split_whitespace().last()) {
            let size: usize = size;
            globals.push((name.to_string(), size.saturating_mul(element)));
        }
    }
    Ok((functions, globals))
}
