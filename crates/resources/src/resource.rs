//! Resource handles and variables, for kernels.
//!
//! An op that makes a handle looks its resource up once per session. The handle holds the resource,
//! so reading a variable needs no lookup.

use crate::string_handle::string_handle;
use ferroflow_base::{Result, failed_precondition, invalid_argument, not_found};
use ferroflow_opdef::{Attrs, KernelBuild, KernelCtx, OpKernel, Resources};
use ferroflow_tensor::{DType, PartialShape, ResourceHandle, Shape, Tensor};
use std::any::Any;
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The name of variables that are only accessible by their handle.
pub const ANONYMOUS: &str = "cd2c89b7-88b7-44c8-ad83-06c2a9158347";

/// A variable: a tensor, or none before it is assigned and after it is destroyed.
///
/// Readers share the tensor's storage; writers copy it while it is shared.
#[derive(Default)]
pub struct Var {
    value: RwLock<Option<Tensor>>,
    /// Number of writes begun; changes only under the lock.
    version: AtomicU64,
    is_reference: bool,
}

impl Var {
    /// Returns the variable of an op `Variable` or `VariableV2`.
    pub fn reference() -> Var {
        Var {
            is_reference: true,
            ..Var::default()
        }
    }

    /// Returns whether it was created by [`Var::reference`]: TensorFlow's messages differ then.
    pub fn is_reference(&self) -> bool {
        self.is_reference
    }

    /// Returns the current value.
    #[inline]
    pub fn get(&self) -> Option<Tensor> {
        self.read().clone()
    }

    /// Locks the value for reading.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, Option<Tensor>> {
        self.value.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the value for writing.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, Option<Tensor>> {
        let guard = self.value.write().unwrap_or_else(PoisonError::into_inner);
        self.version.fetch_add(1, Ordering::Release);
        guard
    }

    /// Puts a value elsewhere, which is not a write: a copy on a device, or on the host. `moved` gets the value, and
    /// returns the same elements.
    ///
    /// # Errors
    /// Those of `moved`.
    pub fn relocate(&self, moved: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<()> {
        let mut guard = self.value.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = &mut *guard {
            *value = moved(value)?;
        }
        Ok(())
    }

    /// Changes the value to what it was, which is not a write.
    ///
    /// # Errors
    /// Those of `reset`.
    pub fn reset(&self, reset: impl FnOnce(&mut Option<Tensor>) -> Result<()>) -> Result<()> {
        reset(&mut self.value.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Assigns a value (AssignVariableOp). `declared` is the shape of an old-style variable; with `validate` the
    /// shape must not change.
    ///
    /// ```
    /// use ferroflow_resources::resource::Var;
    /// use ferroflow_tensor::Tensor;
    /// let var = Var::default();
    /// var.assign(Tensor::scalar(1.0f32), None, true).unwrap();
    /// assert!(var.assign(Tensor::scalar(1i32), None, true).is_err());
    /// ```
    ///
    /// # Errors
    /// INVALID_ARGUMENT for another dtype than the value's, or another shape.
    pub fn assign(
        &self,
        value: Tensor,
        declared: Option<&PartialShape>,
        validate: bool,
    ) -> Result<()> {
        if let Some(declared) = declared.filter(|declared| !declared.matches(value.shape())) {
            return Err(invalid_argument!(
                "Assign requires shapes of both tensors to match. lhs shape= {declared} rhs shape= {}",
                value.shape()
            ));
        }
        let mut current = self.write();
        if let Some(old) = &*current {
            if old.dtype() != value.dtype() {
                return Err(invalid_argument!(
                    "Trying to assign variable with wrong dtype. Expected {} got {}",
                    old.dtype(),
                    value.dtype()
                ));
            }
            if validate && old.shape() != value.shape() {
                return Err(invalid_argument!(
                    "Trying to assign to variable with tensor with wrong shape. Expected {} got {}",
                    old.shape(),
                    value.shape()
                ));
            }
        }
        let old = current.replace(value);
        // Values are dropped without the lock: they may be large.
        drop(current);
        drop(old);
        Ok(())
    }

    /// Checks the shape of a tensor that is added to or subtracted from a value of shape `current`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it has another shape.
    pub fn check_update(&self, current: &Shape, by: &Shape) -> Result<()> {
        match self.is_reference {
            _ if current == by => Ok(()),
            true => Err(invalid_argument!(
                "Parameters and update must be the same size"
            )),
            false => Err(invalid_argument!(
                "Cannot update variable with shape {current} using a Tensor with shape {by}, shapes must be equal."
            )),
        }
    }

    /// Returns a number that changes with every write.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the current value and its version.
    pub fn get_with_version(&self) -> (Option<Tensor>, u64) {
        let value = self.read();
        (value.clone(), self.version())
    }
}

/// Returns the attrs of a VarHandleOp that say which variable it is: container, empty for the default one, and name.
///
/// # Errors
/// INVALID_ARGUMENT if an attr is missing.
pub fn container_and_name(attrs: &Attrs) -> Result<(String, String)> {
    let attr = |name| attrs.str(name).map(str::to_string);
    Ok((attr("container")?, attr("shared_name")?))
}

/// A resource type that handles refer to.
pub trait Resource: Any + Send + Sync + Sized {
    /// TensorFlow's name of the type, for messages.
    const TYPE: &'static str;
    /// Returns whether it was destroyed, so that its next user creates a new one.
    fn is_gone(&self) -> bool;
    /// Checks that it is compatible with `_wanted`, a node's definition of the same resource.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it is not.
    fn check_same(&self, _wanted: &Self, _name: &str) -> Result<()> {
        Ok(())
    }
}

impl Resource for Var {
    const TYPE: &'static str = "tensorflow::Var";

    fn is_gone(&self) -> bool {
        false
    }
}

/// Returns the single handle in input `i`.
///
/// # Errors
/// INVALID_ARGUMENT if the input is not a single handle.
#[inline]
pub fn handle<'a>(ctx: &'a KernelCtx, i: usize) -> Result<&'a ResourceHandle> {
    match ctx.input(i)?.resources()? {
        [handle] => Ok(handle),
        handles => Err(invalid_argument!(
            "expected a scalar resource handle, got {} handles",
            handles.len()
        )),
    }
}

/// Returns the resource that a handle names, which must be a `T`.
///
/// # Errors
/// NOT_FOUND if the resource does not exist; INVALID_ARGUMENT if it is of another type.
pub fn resolve<T: Resource>(ctx: &KernelCtx, handle: &ResourceHandle) -> Result<Arc<T>> {
    let Some(value) = &handle.value else {
        return ctx.resources().lookup(&handle.container, &handle.name);
    };
    let found = value.clone().downcast::<T>();
    found.map_err(|_| {
        invalid_argument!(
            "Trying to access a handle's resource using the wrong type. The handle points to a \
             resource (name '{}') of another type, but you are trying to access the resource as \
             type '{}'",
            handle.name,
            T::TYPE
        )
    })
}

/// Returns the `T` that the handle in input `i` names.
///
/// # Errors
/// As for [`handle`] and [`resolve`].
pub fn resource<T: Resource>(ctx: &KernelCtx, i: usize) -> Result<Arc<T>> {
    resolve(ctx, handle(ctx, i)?)
}

/// Returns the variable that the handle in input `i` names.
///
/// # Errors
/// As for [`handle`] and [`resolve`].
pub fn variable(ctx: &KernelCtx, i: usize) -> Result<Arc<Var>> {
    resource(ctx, i)
}

/// Returns the value of an initialized variable, as the host reaches it.
///
/// # Errors
/// FAILED_PRECONDITION or NOT_FOUND, as in TensorFlow, if the variable has no value;
/// INVALID_ARGUMENT if its dtype differs; those of a device that has the value.
pub fn value_of(ctx: &KernelCtx, i: usize, value: &Option<Tensor>, dtype: DType) -> Result<Tensor> {
    let value = value.as_ref().ok_or_else(|| unassigned(ctx, i))?;
    check_dtype(value, dtype)?;
    value.on_host()
}

/// Like [`value_of`], for writing: a value of a device moves to the host.
///
/// # Errors
/// As for [`value_of`].
pub fn value_mut<'a>(
    ctx: &KernelCtx,
    i: usize,
    value: &'a mut Option<Tensor>,
    dtype: DType,
) -> Result<&'a mut Tensor> {
    let value = placed_mut(ctx, i, value, dtype)?;
    if value.is_on_device() {
        *value = value.on_host()?;
    }
    Ok(value)
}

/// Like [`value_mut`], with a value that stays where it is.
///
/// # Errors
/// FAILED_PRECONDITION or NOT_FOUND, as in TensorFlow, if the variable has no value;
/// INVALID_ARGUMENT if its dtype differs.
pub fn placed_mut<'a>(
    ctx: &KernelCtx,
    i: usize,
    value: &'a mut Option<Tensor>,
    dtype: DType,
) -> Result<&'a mut Tensor> {
    let value = value.as_mut().ok_or_else(|| unassigned(ctx, i))?;
    check_dtype(value, dtype)?;
    Ok(value)
}

#[inline]
fn check_dtype(value: &Tensor, dtype: DType) -> Result<()> {
    if value.dtype() == dtype {
        return Ok(());
    }
    Err(invalid_argument!(
        "Trying to read variable with wrong dtype. Expected {dtype} got {}",
        value.dtype()
    ))
}

/// Locks the variables of an op, which are its first inputs, for writing, in a global order that avoids deadlocks; returns them in the op's order.
///
/// # Errors
/// INVALID_ARGUMENT if one is among them twice.
pub fn lock<'a>(
    ctx: &KernelCtx,
    vars: &'a [Arc<Var>],
) -> Result<Vec<RwLockWriteGuard<'a, Option<Tensor>>>> {
    let mut order: Vec<usize> = (0..vars.len()).collect();
    order.sort_by_key(|&i| vars.get(i).map(Arc::as_ptr));
    let mut locked: Vec<(usize, _)> = Vec::with_capacity(vars.len());
    let mut previous: Option<&Arc<Var>> = None;
    for i in order {
        let Some(var) = vars.get(i) else { continue };
        if previous.is_some_and(|p| Arc::ptr_eq(p, var)) {
            return Err(invalid_argument!(
                "the variable {} is used for two inputs of one optimizer",
                handle(ctx, i)?.name
            ));
        }
        previous = Some(var);
        locked.push((i, var.write()));
    }
    locked.sort_unstable_by_key(|(i, _)| *i);
    Ok(locked.into_iter().map(|(_, guard)| guard).collect())
}

/// Returns the error of an op on an uninitialized variable.
#[cold]
pub fn unassigned(ctx: &KernelCtx, i: usize) -> ferroflow_base::Status {
    let is_reference = |h| resolve::<Var>(ctx, h).is_ok_and(|var| var.is_reference());
    match handle(ctx, i) {
        Ok(h) if is_reference(h) => {
            failed_precondition!("Attempting to use uninitialized value {}", h.name)
        }
        Ok(h) => not_found!(
            "Resource {}/{}/N10tensorflow3VarE does not exist.",
            h.container,
            h.name
        ),
        Err(e) => e,
    }
}

/// Returns the error of reading an uninitialized variable.
#[cold]
pub fn unreadable(h: &ResourceHandle) -> ferroflow_base::Status {
    failed_precondition!(
        "Could not find variable {0}. This could mean that the variable has been deleted. In TF1, it \
         can also mean the variable is uninitialized. Debug info: container={1}, status error \
         message=Resource {1}/{0}/N10tensorflow3VarE does not exist.",
        h.name,
        h.container
    )
}

/// Returns a scalar handle.
///
/// # Errors
/// Those of [`Tensor::from_resources`], which do not occur here.
pub fn handle_tensor<T: Resource>(container: &str, name: &str, value: Arc<T>) -> Result<Tensor> {
    let handle = ResourceHandle {
        container: container.into(),
        name: name.into(),
        value: Some(value),
        origin: None,
    };
    Tensor::from_resources(Shape::scalar(), vec![handle])
}

/// What a handle names, kept until [`destroy_kept`].
struct Kept {
    _value: Arc<dyn Any + Send + Sync>,
}

/// Returns a handle of `value`, which lives until [`destroy_kept`], also without handles.
///
/// # Errors
/// ALREADY_EXISTS if a value of this name is kept.
pub fn kept_handle<T: Resource>(
    ctx: &KernelCtx,
    container: &str,
    name: &str,
    value: Arc<T>,
) -> Result<Tensor> {
    let kept = Kept {
        _value: value.clone(),
    };
    ctx.resources().create(container, name, Arc::new(kept))?;
    handle_tensor(container, name, value)
}

/// Stops to keep what a handle of [`kept_handle`] names; returns whether it was.
pub fn destroy_kept(ctx: &KernelCtx, handle: &ResourceHandle) -> bool {
    let removed = ctx
        .resources()
        .remove::<Kept>(&handle.container, &handle.name);
    removed.is_ok()
}

/// Container and name of a resource, from the attrs `container` and `shared_name` (TensorFlow's
/// class of this name in `core/framework/resource_mgr.h`).
pub struct ContainerInfo {
    container: String,
    name: String,
    /// Whether the resource is named by its node and private to its session.
    is_private_to_kernel: bool,
}

impl ContainerInfo {
    /// Returns the container and name of a variable: its shared name, even if empty.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if an attr is missing.
    pub fn of_variable(build: &KernelBuild) -> Result<ContainerInfo> {
        let (container, name) = container_and_name(build.attrs)?;
        Ok(ContainerInfo {
            container,
            name,
            is_private_to_kernel: false,
        })
    }

    /// Returns the name of anonymous resources: each execution creates one.
    pub fn anonymous() -> ContainerInfo {
        ContainerInfo {
            container: String::new(),
            name: ANONYMOUS.to_string(),
            is_private_to_kernel: false,
        }
    }

    /// Returns the container and name of any other resource: without a shared name it is private to
    /// the node in one session.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if an attr is missing.
    pub fn of_node(build: &KernelBuild) -> Result<ContainerInfo> {
        let shared = build.attrs.str("shared_name")?;
        let by_node = build.attrs.bool("use_node_name_sharing").unwrap_or(false);
        Ok(ContainerInfo {
            container: build.attrs.str("container")?.to_string(),
            name: match shared {
                "" => build.node.to_string(),
                shared => shared.to_string(),
            },
            is_private_to_kernel: shared.is_empty() && !by_node,
        })
    }

    /// Returns the container.
    pub fn container<'a>(&'a self, resources: &'a Resources) -> &'a str {
        resources.container(&self.container)
    }

    /// Returns the resource, created if needed, and its name.
    ///
    /// # Errors
    /// Those of creating it.
    pub fn find<T: Any + Send + Sync>(
        &self,
        resources: &Resources,
        make: impl FnOnce(&str) -> Result<T>,
    ) -> Result<(Cow<'_, str>, Arc<T>)> {
        let ContainerInfo {
            container, name, ..
        } = self;
        if self.is_private_to_kernel {
            let (name, found) = resources.private_to_kernel(container, name, make)?;
            return Ok((name.into(), found));
        }
        let found = resources.lookup_or_create(container, name, || make(name))?;
        Ok((name.into(), found))
    }
}

/// The kernel of an op that returns a handle: the resource is created or looked up in the first
/// step of a session.
pub struct HandleKernel<T, F> {
    container_info: ContainerInfo,
    make: F,
    wrap: fn(&str, &str, Arc<T>) -> Result<Tensor>,
    /// The id of the session's resources, the handle, and its resource.
    cached: OnceLock<(u64, Tensor, Arc<T>)>,
}

impl<T: Resource, F: Fn(&KernelCtx) -> Result<T> + Send + Sync> HandleKernel<T, F> {
    /// Returns the kernel of an op that makes a handle.
    pub fn new(container_info: ContainerInfo, make: F) -> Self {
        HandleKernel {
            container_info,
            make,
            wrap: handle_tensor,
            cached: OnceLock::new(),
        }
    }

    /// Makes the handle a string, as old ops have it.
    #[must_use]
    pub fn by_reference(mut self) -> Self {
        self.wrap = |container, name, value| string_handle(container, name, value);
        self
    }

    #[cold]
    fn find(&self, ctx: &KernelCtx, resources: &Resources) -> Result<(Tensor, Arc<T>)> {
        let container = self.container_info.container(resources);
        if self.container_info.name == ANONYMOUS {
            let made = Arc::new((self.make)(ctx)?);
            return Ok(((self.wrap)(container, ANONYMOUS, made.clone())?, made));
        }
        let make = |_: &str| (self.make)(ctx);
        let (name, mut found) = self.container_info.find(resources, make)?;
        if found.is_gone() {
            // Another thread may have replaced it first; then that resource is found.
            let _ = resources.remove::<T>(container, &name);
            found = self.container_info.find(resources, make)?.1;
        }
        found.check_same(&(self.make)(ctx)?, &name)?;
        Ok(((self.wrap)(container, &name, found.clone())?, found))
    }

    /// Returns the id of the resources that the handle belongs to.
    fn id(&self, resources: &Resources) -> u64 {
        match self.container_info.is_private_to_kernel {
            true => resources.session_id(),
            false => resources.id(),
        }
    }
}

impl<T: Resource, F: Fn(&KernelCtx) -> Result<T> + Send + Sync> OpKernel for HandleKernel<T, F> {
    #[inline]
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let resources = ctx.resources();
        if let Some((id, tensor, found)) = self.cached.get()
            && *id == self.id(resources)
            && !found.is_gone()
        {
            return ctx.set_output(0, tensor.clone());
        }
        let (tensor, found) = self.find(ctx, resources)?;
        if self.container_info.name != ANONYMOUS {
            let _ = self.cached.set((self.id(resources), tensor.clone(), found));
        }
        ctx.set_output(0, tensor)
    }
}
