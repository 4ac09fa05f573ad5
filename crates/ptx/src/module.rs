//! [`Module`]: the functions and variables of a text.

use crate::decode::decode;
use crate::kernel::Kernel;
use crate::ops::Ty;
use crate::source::Source;
use crate::{Res, lock};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A variable of a module: its alignment, its size, and what it starts with.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) align: usize,
    pub(crate) size: usize,
    pub(crate) first: Vec<u8>,
}

/// A text that was loaded. Kernels are decoded when they are first asked for.
pub(crate) struct Module {
    pub(crate) source: Source,
    /// The compute capability that it is for, as 75 or 80.
    pub(crate) target: u32,
    pub(crate) shared: HashMap<String, Variable>,
    /// Global variables: where they are, and their sizes.
    pub(crate) globals: HashMap<String, (u64, usize)>,
    /// The positions of the lists of parameters, behind the names.
    entries: HashMap<String, usize>,
    /// The positions behind `.func`.
    pub(crate) functions: HashMap<String, usize>,
    kernels: Mutex<HashMap<String, Arc<Kernel>>>,
}

impl Module {
    pub(crate) fn parse(text: &str) -> Res<Module> {
        let mut module = Module {
            source: Source::new(text),
            target: 0,
            shared: HashMap::new(),
            globals: HashMap::new(),
            entries: HashMap::new(),
            functions: HashMap::new(),
            kernels: Mutex::default(),
        };
        let mut at = 0;
        while at < module.source.len() {
            at = module.directive(at)?;
        }
        match module.target {
            0 => Err("a module has no .target".to_string()),
            _ => Ok(module),
        }
    }

    /// Reads what starts at a position; returns the position behind it.
    fn directive(&mut self, at: usize) -> Res<usize> {
        let name = |i: usize| self.source.get(i).to_string();
        match &*name(at) {
            ".version" | ".address_size" => Ok(at + 2),
            ".visible" | ".weak" => Ok(at + 1),
            ".target" => {
                let target = name(at + 1)
                    .strip_prefix("sm_")
                    .and_then(|n| n.parse().ok());
                self.target = target.ok_or("the .target is not an sm_ number")?;
                Ok(at + 2)
            }
            ".shared" => {
                let (name, variable, next) = variable(&self.source, at)?;
                self.shared.insert(name, variable);
                Ok(next)
            }
            ".global" => {
                let (name, variable, next) = variable(&self.source, at)?;
                let mut bytes = variable.first;
                bytes.resize(variable.size, 0);
                // A module is never unloaded. Words, as they are aligned.
                let words: Vec<u128> = bytes
                    .chunks(16)
                    .map(|c| {
                        let mut word = [0; 16];
                        word[..c.len()].copy_from_slice(c);
                        u128::from_le_bytes(word)
                    })
                    .collect();
                let kept = Box::leak(words.into_boxed_slice());
                let address = kept.as_ptr().expose_provenance() as u64;
                self.globals.insert(name, (address, variable.size));
                Ok(next)
            }
            ".entry" => {
                self.entries.insert(name(at + 1), at + 2);
                Ok(self.behind_body(at))
            }
            ".func" => {
                let own = match self.source.get(at + 1) {
                    "(" => self.source.behind(at + 1),
                    _ => at + 1,
                };
                self.functions.insert(name(own), at + 1);
                Ok(self.behind_body(at))
            }
            other => Err(format!("a module has the unknown '{other}'")),
        }
    }

    fn behind_body(&self, at: usize) -> usize {
        let mut at = at;
        while at < self.source.len() && self.source.get(at) != "{" {
            at += 1;
        }
        self.source.behind(at)
    }

    /// The names of all kernels.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Returns a kernel, decoded; `None` if there is none of this name.
    pub(crate) fn kernel(&self, name: &str) -> Res<Option<Arc<Kernel>>> {
        let Some(at) = self.entries.get(name) else {
            return Ok(None);
        };
        let mut kernels = lock(&self.kernels);
        if let Some(kernel) = kernels.get(name) {
            return Ok(Some(kernel.clone()));
        }
        let kernel = Arc::new(decode(self, name, *at)?);
        kernels.insert(name.to_string(), kernel.clone());
        Ok(Some(kernel))
    }
}

/// Reads a variable at its space; returns its name and the position behind it.
pub(crate) fn variable(source: &Source, at: usize) -> Res<(String, Variable, usize)> {
    let (mut at, mut align, mut size) = (at + 1, 0, None);
    while source.get(at).starts_with('.') {
        match source.get(at) {
            ".align" => {
                align = source.get(at + 1).parse().map_err(|_| "no alignment")?;
                at += 1;
            }
            ty => size = Ty::parse(&ty[1..]).map(Ty::size),
        }
        at += 1;
    }
    let size = size.ok_or("a variable has no type")?;
    let (name, mut count, mut first) = (source.get(at).to_string(), 1, Vec::new());
    at += 1;
    if source.get(at) == "[" {
        count = source
            .get(at + 1)
            .parse()
            .map_err(|_| "no number of elements")?;
        at += 3;
    }
    if source.get(at) == "=" {
        let end = source.behind(at + 1);
        let words = (at + 2..end - 1)
            .map(|i| source.get(i))
            .filter(|t| *t != ",");
        for word in words {
            let value: u64 = word
                .parse()
                .map_err(|_| format!("{name} starts with {word}"))?;
            first.extend_from_slice(&value.to_le_bytes()[..size]);
        }
        at = end;
    }
    if source.get(at) != ";" {
        return Err(format!("{name} does not end"));
    }
    let variable = Variable {
        align: align.max(size),
        size: size * count,
        first,
    };
    Ok((name, variable, at + 1))
}
