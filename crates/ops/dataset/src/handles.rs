//! Iterators by text: what IteratorToStringHandle returns, and a client may feed.

use ferroflow_base::{Result, invalid_argument, not_found};
use ferroflow_opdef::KernelCtx;
use ferroflow_resources::resource::{Resource, handle, resource};
use ferroflow_tensor::{ResourceHandle, Shape, Tensor};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The resources of one type that have a text, of all sessions that share resources.
pub(crate) struct StringHandles<T>(Mutex<Table<T>>);

struct Table<T> {
    by_text: HashMap<String, (Weak<T>, ResourceHandle)>,
    n: u64,
}

impl<T: Resource> StringHandles<T> {
    fn of(ctx: &KernelCtx) -> Result<Arc<StringHandles<T>>> {
        let empty = || Table {
            by_text: HashMap::new(),
            n: 0,
        };
        let name = "string handles";
        ctx.resources()
            .lookup_or_create("", name, || Ok(StringHandles(Mutex::new(empty()))))
    }

    fn lock(&self) -> MutexGuard<'_, Table<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the text of the resource in input `i`, which is on `device`.
    pub(crate) fn add(ctx: &KernelCtx, i: usize, device: &str) -> Result<String> {
        let (found, all) = (resource::<T>(ctx, i)?, Self::of(ctx)?);
        let mut table = all.lock();
        table
            .by_text
            .retain(|_, (value, _)| value.strong_count() > 0);
        let known = table.by_text.iter();
        let mut known = known.filter(|(_, (value, _))| value.as_ptr() == Arc::as_ptr(&found));
        if let Some((text, _)) = known.next() {
            return Ok(text.clone());
        }
        let handle = handle(ctx, i)?;
        let on_device = match device {
            "" => String::new(),
            device => format!("@{device}"),
        };
        let text = format!(
            "{}/{}/{}#{}{on_device}",
            T::TYPE,
            handle.container,
            handle.name,
            table.n
        );
        // The text does not keep the resource.
        let unbound = ResourceHandle {
            value: None,
            ..handle.clone()
        };
        table.n += 1;
        let entry = (Arc::downgrade(&found), unbound);
        table.by_text.insert(text.clone(), entry);
        Ok(text)
    }

    /// Returns the resource of the text in input `i`, and its handle, for a node on device `own`.
    pub(crate) fn find(ctx: &KernelCtx, i: usize, own: &str) -> Result<(Tensor, Arc<T>)> {
        let t = ctx.input(i)?;
        let text = match t.strings()? {
            [text] if t.shape().is_scalar() => std::str::from_utf8(text).unwrap_or_default(),
            _ => return Err(invalid_argument!("string_handle must be a scalar")),
        };
        if !text.starts_with(T::TYPE) {
            return Err(invalid_argument!(
                "Could not parse string_handle as a valid ResourceHandle"
            ));
        }
        // Nodes that were not placed have no full name.
        let is_full = |name: &str| name.starts_with("/job:") && name.contains("/device:");
        if let Some((_, device)) = text.rsplit_once('@')
            && device != own
            && is_full(device)
            && is_full(own)
        {
            return Err(invalid_argument!(
                "Attempted create an iterator on device \"{own}\" from handle defined on device \"{device}\""
            ));
        }
        let all = Self::of(ctx)?;
        let table = all.lock();
        let entry = table.by_text.get(text);
        let found = entry.and_then(|(value, handle)| Some((value.upgrade()?, handle.clone())));
        let Some((value, mut handle)) = found else {
            return Err(not_found!("Resource {text} does not exist."));
        };
        handle.value = Some(value.clone());
        Ok((
            Tensor::from_resources(Shape::scalar(), vec![handle])?,
            value,
        ))
    }
}
