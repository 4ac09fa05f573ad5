//! Host programs as MLIR text: the subset that TFRT's host dialects use.

mod attr_text;
mod attrs;
mod blocks;
mod custom_parse;
mod custom_print;
mod dense;
mod diagnostic;
mod forms;
mod functions;
mod inline;
mod ir;
mod lexer;
mod location;
mod names;
mod parser;
mod printer;
mod streams;
mod types;
mod verify;

pub use attr_text::attr_text;
pub(crate) use attrs::scalar_bytes;
pub use diagnostic::{Diagnostic, Severity};
pub use forms::has_typed_attributes;
pub use inline::inline_calls;
pub(crate) use ir::element_size;
pub use ir::{
    Attr, Block, Dense, FunctionType, Loc, Module, Op, Region, Type, Value, ValueInfo, is_compiled,
};
pub use printer::{PrintOptions, print, print_operation};
pub(crate) use streams::says_costs;
pub use streams::{COST, Stream, Streams, stream_remarks};
pub use verify::verify;

/// Reads a program from text. `first_line` lines of the file come before `text`.
///
/// ```
/// use ferroflow_program::mlir;
/// let text = "func @one() -> i32 {\n  %a = tfrt.constant.i32 1\n  tfrt.return %a : i32\n}";
/// let module = mlir::parse(text, "one.mlir", 0).expect("well formed");
/// assert!(mlir::verify(&module).is_empty());
/// assert!(mlir::print(&module, mlir::PrintOptions::default()).contains("%0 = tfrt.constant.i32 1"));
/// ```
///
/// # Errors
/// The first syntax error, with its notes.
pub fn parse(text: &str, file: &str, first_line: usize) -> Result<Module, Vec<Diagnostic>> {
    parser::Parser::new(lexer::Lexer::new(text, file, first_line)).parse_module()
}

/// Reads a type from its text.
pub fn parse_type(text: &str) -> Option<Type> {
    let mut parser = parser::Parser::new(lexer::Lexer::new(text, "", 0));
    parser.bump().ok()?;
    let ty = parser.ty().ok()?;
    matches!(parser.tok, lexer::Tok::End).then_some(ty)
}
