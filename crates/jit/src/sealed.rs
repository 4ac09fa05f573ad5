//! Machine code as bytes that a file can hold. A key seals them: a process runs code only if a process with the same key
//! has made it, so that the right to write files does not include the right to execute code.

use crate::code::{Code, offsets};
use crate::helpers::Helper;
use crate::translate::isa;
use cranelift_codegen::settings::Value;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::Cluster;
use siphasher::sip128::SipHasher24;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;
use subtle::ConstantTimeEq;

/// What code of this version of the crate begins with: another one may call it in other ways.
const MAGIC: &str = concat!("ferroflow code ", env!("CARGO_PKG_VERSION"), " 1");
/// The bytes of a seal.
const SEAL: usize = 16;
/// The variable with the path of the process's key.
const VARIABLE: &str = "FERROFLOW_CODE_KEY";

/// A secret of 128 bits that seals machine code, by SipHash-2-4 (Aumasson and Bernstein, 2012).
pub struct CodeKey([u8; 16]);

impl CodeKey {
    /// Reads a key, 32 hexadecimal digits, from a file that only its owner can access.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the file is not readable or is not a key, or if others can access it.
    pub fn from_file(path: &Path) -> Result<CodeKey> {
        let bad = |why: &dyn std::fmt::Display| {
            invalid_argument!(
                "'{}' is not a key for machine code: {why}; make one by `openssl rand -hex 16`",
                path.display()
            )
        };
        let mut file = File::open(path).map_err(|e| bad(&e))?;
        let mode = mode_for_others(&file).map_err(|e| bad(&e))?;
        if mode != 0 {
            return Err(bad(&"others can access it (`chmod 600` ends that)"));
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|e| bad(&e))?;
        let digits = text.trim();
        let is_key = digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let key = u128::from_str_radix(digits, 16).ok().filter(|_| is_key);
        let key = key.ok_or_else(|| bad(&"it does not have 32 hexadecimal digits"))?;
        Ok(CodeKey(key.to_be_bytes()))
    }

    /// Returns the key of the process, that in the file that `FERROFLOW_CODE_KEY` names, if it is set.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file).
    pub fn of_process() -> Result<Option<&'static CodeKey>> {
        static KEY: OnceLock<Result<Option<CodeKey>>> = OnceLock::new();
        let key = KEY.get_or_init(|| match std::env::var_os(VARIABLE) {
            Some(path) => CodeKey::from_file(Path::new(&path)).map(Some),
            None => Ok(None),
        });
        key.as_ref().map(Option::as_ref).map_err(Clone::clone)
    }

    /// The seal of code for a program.
    fn seal(&self, program: &str, code: &[u8]) -> [u8; SEAL] {
        let mut message = Vec::with_capacity(program.len() + code.len() + 8);
        message.extend_from_slice(&(program.len() as u64).to_le_bytes());
        message.extend_from_slice(program.as_bytes());
        message.extend_from_slice(code);
        SipHasher24::new_with_key(&self.0).hash(&message).as_bytes()
    }
}

/// The permissions of a file that the group and others have.
#[cfg(unix)]
fn mode_for_others(file: &File) -> std::io::Result<u32> {
    use std::os::unix::fs::MetadataExt;
    Ok(file.metadata()?.mode() & 0o077)
}

#[cfg(not(unix))]
fn mode_for_others(_: &File) -> std::io::Result<u32> {
    Ok(0)
}

/// The machine and the layout that code is made for, and the optional instructions that it may have.
fn machine() -> Result<(String, BTreeSet<&'static str>)> {
    let isa = isa()?;
    let flags = isa.isa_flags();
    let enabled = flags.iter().filter(|flag| flag.as_bool() == Some(true));
    Ok((
        format!("{} {:?}", isa.triple(), offsets::ALL),
        enabled.map(|flag: &Value| flag.name).collect(),
    ))
}

impl Code {
    /// Returns code of `program` as bytes that [`unseal`](Self::unseal) reads with the same key.
    ///
    /// # Errors
    /// UNIMPLEMENTED if the machine is not supported.
    pub fn seal(&self, program: &Cluster, key: &CodeKey) -> Result<Vec<u8>> {
        let (code, helpers) = self.parts();
        let (of, flags) = machine()?;
        let flags: Vec<&str> = flags.into_iter().collect();
        let helpers: Vec<String> = helpers.iter().map(Helper::to_string).collect();
        let head = [MAGIC, &of, &flags.join(" "), &helpers.join(" "), ""].join("\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(code);
        let seal = key.seal(&program.to_string(), &bytes);
        bytes.extend_from_slice(&seal);
        Ok(bytes)
    }

    /// Returns the code of `program` in sealed bytes; `None` if the seal is not that of the key, or the code is for
    /// another machine or version.
    pub fn unseal(program: &Cluster, bytes: &[u8], key: &CodeKey) -> Option<Code> {
        let (bytes, seal) = bytes.split_last_chunk::<SEAL>()?;
        // In constant time: how long a refusal takes says nothing about the seal.
        let own = key.seal(&program.to_string(), bytes);
        if !bool::from(own.ct_eq(seal)) {
            return None;
        }
        let mut lines = bytes.splitn(5, |b| *b == b'\n');
        let mut line = || std::str::from_utf8(lines.next()?).ok();
        let (magic, of, needs, helpers) = (line()?, line()?, line()?, line()?);
        let code = lines.next()?;
        let (own, has) = machine().ok()?;
        let fits = magic == MAGIC && of == own && words(needs).all(|flag| has.contains(flag));
        let helpers = words(helpers).map(Helper::parse);
        let helpers: Vec<Helper> = helpers.collect::<Option<_>>()?;
        fits.then(|| Code::new(program, code, helpers).ok())?
    }
}

/// The words of a line.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(' ').filter(|word| !word.is_empty())
}
