//! DecodeJSONExample: `tf.Example` messages from their JSON form (TensorFlow:
//! `core/kernels/example_parsing_ops.cc`; protocol buffers' JSON mapping).

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelCtx, Op};
use ferroflow_tensor::{Bytes, Tensor};
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::Value as Json;
use std::fmt;
use std::marker::PhantomData;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "DecodeJSONExample",
    "json_examples: string -> binary_examples: string",
)
.shape(shapes::unchanged)
.kernel(|_| Ok(Box::new(decode)))];

fn decode(ctx: &mut KernelCtx) -> Result<()> {
    let t = ctx.input(0)?;
    let messages = t.strings()?.iter().map(|text| {
        let message = serde_json::from_slice(text).map_err(|e| e.to_string());
        let message = message.and_then(|example| example_bytes(&example));
        let message = message.map_err(|e| invalid_argument!("Error while parsing JSON: {e}"))?;
        Ok(Bytes::from(message))
    });
    let messages = messages.collect::<Result<Vec<_>>>()?;
    let out = Tensor::from_strings(t.shape().clone(), messages)?;
    ctx.set_output(0, out)
}

/// An object's members in their order, in which the message is written.
struct Members<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Members<T> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
            type Value = Members<T>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_unit<E>(self) -> std::result::Result<Self::Value, E> {
                Ok(Members(Vec::new()))
            }
            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some(member) = map.next_entry()? {
                    all.push(member);
                }
                Ok(Members(all))
            }
        }
        from.deserialize_any(Reader(PhantomData))
    }
}

type Feature = Members<Members<Option<Vec<Json>>>>;
type Example = Members<Members<Members<Option<Feature>>>>;

/// A message's text or a reason why there is none.
type Message = std::result::Result<Vec<u8>, String>;

fn unknown<T>(name: &str) -> std::result::Result<T, String> {
    Err(format!("no such field: '{name}'"))
}

/// Appends a field that holds bytes.
fn put(out: &mut Vec<u8>, number: u8, bytes: &[u8]) -> std::result::Result<(), String> {
    out.push(number << 3 | 2);
    prost::encode_length_delimiter(bytes.len(), out).map_err(|e| e.to_string())?;
    out.extend_from_slice(bytes);
    Ok(())
}

fn example_bytes(example: &Example) -> Message {
    let mut out = Vec::new();
    for (name, features) in &example.0 {
        if name != "features" {
            return unknown(name);
        }
        let mut all = Vec::new();
        for (name, map) in &features.0 {
            if name != "feature" {
                return unknown(name);
            }
            for (key, feature) in &map.0 {
                let mut entry = Vec::new();
                put(&mut entry, 1, key.as_bytes())?;
                if let Some(feature) = feature {
                    put(&mut entry, 2, &feature_bytes(feature)?)?;
                }
                put(&mut all, 1, &entry)?;
            }
        }
        put(&mut out, 1, &all)?;
    }
    Ok(out)
}

fn feature_bytes(feature: &Feature) -> Message {
    let mut out = Vec::new();
    for (kind, list) in &feature.0 {
        let (number, value): (u8, fn(&[Json]) -> Message) = match &kind[..] {
            "bytesList" | "bytes_list" => (1, words),
            "floatList" | "float_list" => (2, floats),
            "int64List" | "int64_list" => (3, ints),
            _ => return unknown(kind),
        };
        let mut values = Vec::new();
        for (name, list) in &list.0 {
            if name != "value" {
                return unknown(name);
            }
            values.extend(value(list.as_deref().unwrap_or_default())?);
        }
        put(&mut out, number, &values)?;
    }
    Ok(out)
}

fn words(list: &[Json]) -> Message {
    let config =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let engines =
        [&alphabet::STANDARD, &alphabet::URL_SAFE].map(|a| GeneralPurpose::new(a, config));
    let mut out = Vec::new();
    for item in list {
        let text = item
            .as_str()
            .ok_or_else(|| format!("expected base64, got {item}"))?;
        let bytes = engines.iter().find_map(|engine| engine.decode(text).ok());
        put(&mut out, 1, &bytes.ok_or("invalid base64 data")?)?;
    }
    Ok(out)
}

fn floats(list: &[Json]) -> Message {
    let mut out = Vec::new();
    for item in list {
        let value = match item {
            Json::Number(n) => n.as_f64(),
            Json::String(s) => match &s[..] {
                "NaN" => Some(f64::NAN),
                "Infinity" => Some(f64::INFINITY),
                "-Infinity" => Some(f64::NEG_INFINITY),
                s => s.parse().ok().filter(|x: &f64| x.is_finite()),
            },
            _ => None,
        };
        let value = value.ok_or_else(|| format!("expected a number, got {item}"))?;
        if value.is_finite() && !(value as f32).is_finite() {
            return Err(format!("{item} is out of the range of a float"));
        }
        out.push(1 << 3 | 5);
        out.extend((value as f32).to_le_bytes());
    }
    Ok(out)
}

fn ints(list: &[Json]) -> Message {
    let mut out = Vec::new();
    for item in list {
        let value = match item {
            Json::Number(n) => n.as_i64().or_else(|| whole(n.as_f64()?)),
            Json::String(s) => s.parse().ok(),
            _ => None,
        };
        let value: i64 = value.ok_or_else(|| format!("expected an integer, got {item}"))?;
        out.push(1 << 3);
        prost::encoding::encode_varint(value as u64, &mut out);
    }
    Ok(out)
}

/// Returns a number without a fraction.
fn whole(x: f64) -> Option<i64> {
    (x.fract() == 0.0 && x.abs() < 9e15).then_some(x as i64)
}
