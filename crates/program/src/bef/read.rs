//! A file, opened. Opening reads the table of sections, the names of kernels and types and the index
//! of functions; a function's body is decoded and checked when it is first requested.

use super::body::{self, Body};
use super::format::{FunctionKind, N_SECTIONS, Reader, Section, VERSION, corrupt, sections};
use super::model::other_layout;
use ferroflow_base::Result;
use ferroflow_host_context::{AttrKind, Attribute};
use std::collections::HashMap;
use std::ffi::CStr;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The bytes of a file: a vector, a mapping.
pub type FileBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// An open BEF file.
///
/// ```
/// use ferroflow_program::{bef, mlir};
/// let text = "func @f(%a: i32) -> i32 {\n  tfrt.return %a : i32\n}";
/// let module = mlir::parse(text, "f.mlir", 0).expect("well formed");
/// let bytes = bef::write(&module, true).expect("can be written");
/// let file = bef::File::open(std::sync::Arc::new(bytes)).expect("valid");
/// assert_eq!(file.functions().len(), 1);
/// let returns = file.body(0).expect("valid").returns();
/// assert_eq!(returns.iter().map(|r| r.register()).collect::<Vec<_>>(), [0]);
/// ```
pub struct File {
    bytes: FileBytes,
    sections: [Option<Range<usize>>; N_SECTIONS],
    kernels: Vec<usize>,
    types: Vec<usize>,
    functions: Vec<Function>,
    bodies: Vec<OnceLock<Result<Arc<Body>>>>,
    attribute_kinds: OnceLock<HashMap<usize, u16>>,
    location_names: OnceLock<HashMap<usize, String>>,
    streams: OnceLock<Vec<Vec<u32>>>,
}

/// An entry of the index of functions.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its kind.
    pub kind: FunctionKind,
    /// Its name; empty for the region of a kernel.
    pub name: String,
    /// Types of the arguments, as indices of [`File::type_name`].
    pub arguments: Vec<usize>,
    /// Types of the results.
    pub results: Vec<usize>,
    pub(super) offset: usize,
}

impl File {
    /// Opens a file; its functions are checked later, or all at once by [`File::verify`].
    ///
    /// # Errors
    /// DATA_LOSS if the header, a table or the index of functions is corrupted.
    pub fn open(bytes: FileBytes) -> Result<File> {
        let all: &[u8] = (*bytes).as_ref();
        let sections = sections(all)?;
        let mut file = File {
            bytes: bytes.clone(),
            sections,
            kernels: Vec::new(),
            types: Vec::new(),
            functions: Vec::new(),
            bodies: Vec::new(),
            attribute_kinds: OnceLock::new(),
            location_names: OnceLock::new(),
            streams: OnceLock::new(),
        };
        if file.section(Section::FormatVersion).first() != Some(&VERSION) {
            return Err(corrupt("BEF file has unknown version number"));
        }
        if file.is_present(Section::Graph) {
            return Err(other_layout(1));
        }
        file.kernels = file.names(Section::Kernels, "invalid Kernels section in BEF file")?;
        file.types = file.names(Section::Types, "invalid Types section in BEF file")?;
        for section in [Section::FunctionIndex, Section::OtherFunctions] {
            let functions = file.read_index(section).ok_or_else(|| {
                corrupt(
                    "invalid FunctionIndex section in BEF file: Failed to read the FunctionIndex \
                     section",
                )
            })?;
            file.functions.extend(functions);
        }
        file.bodies = file.functions.iter().map(|_| OnceLock::new()).collect();
        Ok(file)
    }

    fn range(&self, section: Section) -> Option<&Range<usize>> {
        let slot = Section::slot(section as u8)?;
        self.sections.get(slot)?.as_ref()
    }

    pub(super) fn section(&self, section: Section) -> &[u8] {
        let range = self.range(section).cloned();
        let bytes = range.and_then(|r| (*self.bytes).as_ref().get(r));
        bytes.unwrap_or(&[])
    }

    /// The start of a section in the file, which its alignments refer to.
    pub(super) fn section_start(&self, section: Section) -> usize {
        self.range(section).map_or(0, |r| r.start)
    }

    /// Whether the file has a section, even an empty one.
    pub(super) fn is_present(&self, section: Section) -> bool {
        self.range(section).is_some()
    }

    /// Whether the file has a section that is not empty.
    pub(super) fn has(&self, section: Section) -> bool {
        !self.section(section).is_empty()
    }

    fn names(&self, section: Section, error: &str) -> Result<Vec<usize>> {
        let offsets = Reader::new(self.section(section), 0).ints();
        offsets
            .filter(|o| o.iter().all(|at| self.string(*at).is_some()))
            .ok_or_else(|| corrupt(error))
    }

    fn read_index(&self, section: Section) -> Option<Vec<Function>> {
        let mut reader = Reader::new(self.section(section), 0);
        if section == Section::OtherFunctions && reader.is_empty() {
            return Some(Vec::new());
        }
        let n = reader.count()?;
        let mut functions = Vec::new();
        for _ in 0..n {
            let kind = FunctionKind::from_number(reader.byte()?)?;
            if kind.section() != section {
                return None;
            }
            let offset = reader.int()?;
            let name = self.string(reader.int()?)?.to_string();
            let (arguments, results) = (reader.ints()?, reader.ints()?);
            let types = arguments.iter().chain(&results);
            if types.into_iter().any(|t| *t >= self.types.len()) {
                return None;
            }
            functions.push(Function {
                kind,
                name,
                arguments,
                results,
                offset,
            });
        }
        Some(functions)
    }

    /// The string at an offset of the section of strings.
    pub(super) fn string(&self, at: usize) -> Option<&str> {
        let tail = self.section(Section::Strings).get(at..)?;
        CStr::from_bytes_until_nul(tail).ok()?.to_str().ok()
    }

    /// The number of kernel names in the file.
    pub fn n_kernels(&self) -> usize {
        self.kernels.len()
    }

    /// The name of a kernel.
    pub fn kernel_name(&self, code: usize) -> &str {
        let at = self.kernels.get(code);
        at.and_then(|at| self.string(*at)).unwrap_or("")
    }

    /// The text of a type.
    pub fn type_name(&self, index: usize) -> &str {
        let at = self.types.get(index);
        at.and_then(|at| self.string(*at)).unwrap_or("none")
    }

    /// The index of functions.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// The function called `name`.
    pub fn function(&self, name: &str) -> Option<usize> {
        // A later function of the same name hides an earlier one.
        self.functions
            .iter()
            .rposition(|f| f.name == name && !name.is_empty())
    }

    /// The body of a function, decoded and checked.
    ///
    /// # Errors
    /// DATA_LOSS if the body is corrupted.
    #[inline]
    pub fn body(&self, function: usize) -> Result<&Arc<Body>> {
        let Some(slot) = self.bodies.get(function) else {
            return Err(corrupt("no such function in BEF file"));
        };
        slot.get_or_init(|| body::decode(self, function).map(Arc::new))
            .as_ref()
            .map_err(Clone::clone)
    }

    /// Checks all functions.
    ///
    /// # Errors
    /// DATA_LOSS for the first function or section that is corrupted.
    pub fn verify(&self) -> Result<()> {
        for (i, function) in self.functions.iter().enumerate() {
            if function.kind.has_body() {
                self.body(i)?;
            }
        }
        self.model(None, &mut |_, _| Ok(())).map(|_| ())
    }

    /// File, line and column of an offset in the section of positions.
    pub fn location(&self, offset: usize) -> Option<(&str, usize, usize)> {
        let mut reader = Reader::new(self.section(Section::LocationPositions), offset);
        let (file, line, column) = (reader.int()?, reader.int()?, reader.int()?);
        let names = self.section(Section::LocationFilenames);
        let name = names.split(|b| *b == 0).nth(file)?;
        Some((std::str::from_utf8(name).ok()?, line, column))
    }

    /// The name of the location at an offset of the section of positions, if any.
    pub fn location_name(&self, offset: usize) -> Option<&str> {
        let names = self.location_names.get_or_init(|| {
            let mut reader = Reader::new(self.section(Section::LocationNames), 0);
            let n = reader.count().unwrap_or(0);
            let pair = |_| Some((reader.int()?, reader.text()?));
            (0..n).map_while(pair).collect()
        });
        names.get(&offset).map(String::as_str)
    }

    /// The streams of a function: of its start and of each kernel. `None` if the file has
    /// none.
    pub(super) fn streams(&self, function: usize) -> Option<&[u32]> {
        let all = self.streams.get_or_init(|| {
            let mut reader = Reader::new(self.section(Section::Streams), 0);
            let n = reader.count().unwrap_or(0);
            let list = |_| {
                let ids = reader.ints()?.into_iter().map(u32::try_from);
                ids.collect::<Result<Vec<u32>, _>>().ok()
            };
            (0..n).map_while(list).collect()
        });
        all.get(function)
            .filter(|l| !l.is_empty())
            .map(Vec::as_slice)
    }

    /// The section of attributes.
    pub fn attributes(&self) -> &[u8] {
        self.section(Section::Attributes)
    }

    /// The attribute at an offset, with its kind if it is known.
    pub fn attribute(&self, offset: usize, kind: Option<AttrKind>) -> Attribute<'_> {
        Attribute::new(self.attributes(), offset, kind)
    }

    /// Kinds by offset; the lowest bit is set if the attribute has a header.
    pub(super) fn attribute_tags(&self) -> &HashMap<usize, u16> {
        self.attribute_kinds.get_or_init(|| {
            let mut reader = Reader::new(self.section(Section::AttributeTypes), 0);
            let n = reader.count().unwrap_or(0);
            (0..n)
                .map_while(|_| Some((reader.int()?, u16::try_from(reader.int()?).ok()?)))
                .collect()
        })
    }
}
