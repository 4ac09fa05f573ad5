//! Descriptors of messages and the types of their fields (TensorFlow: `core/util/proto/descriptors.cc`,
//! `proto_utils.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::Attrs;
use ferroflow_tensor::DType;
use prost_reflect::prost_types::FileDescriptorSet;
use prost_reflect::{Cardinality, DescriptorPool, Kind, MessageDescriptor, Value};
use std::path::Path;

/// Parses the descriptors of files.
fn descriptor_set(bytes: &[u8]) -> Option<FileDescriptorSet> {
    let mut set = FileDescriptorSet::default();
    prost::Message::merge(&mut set, bytes).ok()?;
    Some(set)
}

/// Returns the descriptors that an attr `descriptor_source` names.
fn pool(source: &[u8]) -> Result<DescriptorPool> {
    if source == b"local://" {
        return Ok(ferroflow_model::descriptors().cloned().unwrap_or_default());
    }
    let name = std::str::from_utf8(source).ok().map(Path::new);
    let file = name
        .filter(|name| name.is_file())
        .and_then(|name| std::fs::read(name).ok());
    let of_file = file.and_then(|bytes| descriptor_set(&bytes));
    let refused = || {
        let source = String::from_utf8_lossy(source);
        invalid_argument!(
            "Source does not represent serialized file descriptor set proto. This may be due to a \
             missing dependency on the file containing REGISTER_DESCRIPTOR_POOL(\"{source}\", ...);"
        )
    };
    let set = match of_file {
        Some(set) => set,
        None => {
            let bytes = source.strip_prefix(b"bytes://").ok_or_else(refused)?;
            descriptor_set(bytes).ok_or_else(refused)?
        }
    };
    // A syntax that it does not know makes prost-reflect panic.
    let known = ["", "proto2", "proto3"];
    if let Some(file) = set.file.iter().find(|f| !known.contains(&f.syntax())) {
        return Err(invalid_argument!(
            "Failed to load FileDescriptorProto: unknown syntax '{}'",
            file.syntax()
        ));
    }
    DescriptorPool::from_file_descriptor_set(set)
        .map_err(|e| invalid_argument!("Failed to load FileDescriptorProto: {e}"))
}

/// Returns the type of the messages.
pub(crate) fn message(attrs: &Attrs) -> Result<MessageDescriptor> {
    let pool = pool(attrs.bytes("descriptor_source")?)?;
    let name = attrs.str("message_type")?;
    pool.get_message_by_name(name)
        .ok_or_else(|| invalid_argument!("No descriptor found for message type {name}"))
}

/// The type of a field, protobuf's `FieldDescriptor::Type`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Type {
    Double,
    Float,
    Int64,
    Uint64,
    Int32,
    Fixed64,
    Fixed32,
    Bool,
    String,
    Group,
    Message,
    Bytes,
    Uint32,
    Enum,
    Sfixed32,
    Sfixed64,
    Sint32,
    Sint64,
}

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wire {
    Varint,
    Fixed64,
    Delimited,
    Group,
    Fixed32,
}

impl Wire {
    /// The number in tags.
    pub(crate) fn number(self) -> u32 {
        match self {
            Wire::Varint => 0,
            Wire::Fixed64 => 1,
            Wire::Delimited => 2,
            Wire::Group => 3,
            Wire::Fixed32 => 5,
        }
    }
}

impl Type {
    fn of(kind: &Kind, is_group: bool) -> Self {
        match kind {
            Kind::Double => Type::Double,
            Kind::Float => Type::Float,
            Kind::Int64 => Type::Int64,
            Kind::Uint64 => Type::Uint64,
            Kind::Int32 => Type::Int32,
            Kind::Fixed64 => Type::Fixed64,
            Kind::Fixed32 => Type::Fixed32,
            Kind::Bool => Type::Bool,
            Kind::String => Type::String,
            Kind::Message(_) if is_group => Type::Group,
            Kind::Message(_) => Type::Message,
            Kind::Bytes => Type::Bytes,
            Kind::Uint32 => Type::Uint32,
            Kind::Enum(_) => Type::Enum,
            Kind::Sfixed32 => Type::Sfixed32,
            Kind::Sfixed64 => Type::Sfixed64,
            Kind::Sint32 => Type::Sint32,
            Kind::Sint64 => Type::Sint64,
        }
    }

    pub(crate) fn wire(self) -> Wire {
        match self {
            Type::Double | Type::Fixed64 | Type::Sfixed64 => Wire::Fixed64,
            Type::Float | Type::Fixed32 | Type::Sfixed32 => Wire::Fixed32,
            Type::String | Type::Message | Type::Bytes => Wire::Delimited,
            Type::Group => Wire::Group,
            _ => Wire::Varint,
        }
    }

    /// Returns whether values become a tensor of this dtype.
    pub(crate) fn fits(self, dtype: DType) -> bool {
        let fitting: &[DType] = match self {
            Type::Double => &[DType::Double],
            Type::Float => &[DType::Float, DType::Double],
            Type::Int64 | Type::Sfixed64 | Type::Sint64 => &[DType::Int64],
            Type::Uint64 | Type::Fixed64 => &[DType::Uint64],
            Type::Int32 | Type::Sfixed32 | Type::Sint32 => &[DType::Int32, DType::Int64],
            Type::Uint32 | Type::Fixed32 => &[DType::Uint32, DType::Uint64],
            Type::Bool => &[DType::Bool],
            Type::Enum => &[DType::Int32],
            Type::String | Type::Group | Type::Message | Type::Bytes => &[DType::String],
        };
        fitting.contains(&dtype)
    }

    /// The type's name in protobuf's definitions.
    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// The name of the type in C++.
    pub(crate) fn cpp_name(self) -> &'static str {
        match self {
            Type::Double => "double",
            Type::Float => "float",
            Type::Int64 | Type::Sfixed64 | Type::Sint64 => "int64",
            Type::Uint64 | Type::Fixed64 => "uint64",
            Type::Int32 | Type::Sfixed32 | Type::Sint32 => "int32",
            Type::Uint32 | Type::Fixed32 => "uint32",
            Type::Bool => "bool",
            Type::Enum => "enum",
            Type::String | Type::Bytes => "string",
            Type::Group | Type::Message => "message",
        }
    }
}

/// A field of a message.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub number: u32,
    pub name: String,
    pub kind: Type,
    pub is_repeated: bool,
    pub is_packed: bool,
    /// What stands for an element that is missing.
    pub default: Value,
}

/// Reads the descriptor of a field or of an extension, which have the same methods.
macro_rules! described {
    ($field:expr) => {{
        let field = $field;
        let (kind, is_repeated) = (field.kind(), field.cardinality() == Cardinality::Repeated);
        Field {
            number: field.number(),
            name: field.full_name().to_string(),
            kind: Type::of(&kind, field.is_group()),
            is_repeated,
            is_packed: field.is_packed(),
            default: match is_repeated {
                true => Value::default_value(&kind),
                false => field.default_value(),
            },
        }
    }};
}

impl Field {
    /// Returns a message's field by its name, or an extension by its full name.
    pub(crate) fn of(message: &MessageDescriptor, name: &str, extensions: bool) -> Result<Self> {
        if let Some(field) = message.get_field_by_name(name) {
            return Ok(described!(&field));
        }
        let extension = message
            .get_extension_by_full_name(name)
            .filter(|_| extensions);
        extension.map(|field| described!(&field)).ok_or_else(|| {
            let of = message.full_name();
            invalid_argument!("Unknown field: {name} in message type {of}")
        })
    }
}
