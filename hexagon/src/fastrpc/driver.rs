//! The phone's `libcdsprpc.so`: what of FastRPC we call, by the names and layouts of its public
//! headers (remote.h, rpcmem.h, dspqueue.h), behind functions that are safe to call.

use super::error::FastrpcError;
use super::notice;
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::NonNull;
use std::time::Duration;

/// The compute DSP.
const DOMAIN: c_int = 3;
const DOMAIN_NAME: &CStr = c"cdsp";

// remote_session_control
const UNSIGNED_MODULE: u32 = 2;
const PROCESS_KILL: u32 = 6;
const STATUS_NOTIFICATIONS: u32 = 11;
const GET_URI: u32 = 15;
// remote_handle_control
const CONTROL_LATENCY: u32 = 1;
const GET_DSP_INFO: u32 = 2;
/// Attribute: whether unsigned libraries run.
pub(super) const UNSIGNED_PD: u32 = 1;
/// Attribute: the DSP's version, 0x73 for v73.
pub(super) const ARCH_VER: u32 = 6;

/// Heap and flags of `rpcmem_alloc`: pages of the system, cached on the CPU.
const HEAP_SYSTEM: c_int = 25;
const CACHED: u32 = 1;
/// The DSP maps it when it wants to, with `HAP_mmap`.
const MAP_FD_DELAYED: u32 = 3;

/// Bytes of each direction of a queue: far more than the two messages ever under way.
const QUEUE_BYTES: u32 = 0x10000;
/// A queue's answer to a wait that was too short.
pub(super) const EXPIRED: i32 = 0x0c;

#[repr(C)]
struct RemoteArg {
    pointer: *mut c_void,
    bytes: usize,
}

#[repr(C)]
struct Capability {
    domain: u32,
    attribute: u32,
    capability: u32,
}

#[repr(C)]
struct DomainAndValue {
    domain: c_int,
    value: c_int,
}

#[repr(C)]
struct Latency {
    enable: u32,
    microseconds: u32,
}

#[repr(C)]
struct Notify {
    context: *mut c_void,
    domain: c_int,
    function: unsafe extern "C" fn(*mut c_void, c_int, c_int, u32) -> c_int,
}

#[repr(C)]
struct GetUri {
    domain_name: *const c_char,
    domain_name_len: u32,
    session: u32,
    module: *const c_char,
    module_len: u32,
    uri: *mut c_char,
    uri_len: u32,
}

const _: () = assert!(size_of::<RemoteArg>() == 2 * size_of::<usize>());
const _: () = assert!(size_of::<Capability>() == 12 && size_of::<DomainAndValue>() == 8);

type QueueHandle = *mut c_void;
type QueueCallback = Option<unsafe extern "C" fn(QueueHandle, c_int, *mut c_void)>;

macro_rules! functions {
    ($($name:ident: $type:ty;)*) => {
        /// The functions of the library; it is never unloaded, so they stay.
        #[derive(Clone, Copy)]
        struct Functions {
            $($name: $type,)*
            /// Missing on some phones: then `rpcmem_alloc` serves up to 2 GiB.
            rpcmem_alloc2: Option<unsafe extern "C" fn(c_int, u32, usize) -> *mut c_void>,
        }

        impl Functions {
            fn of(library: &Library, path: &Path) -> Result<Functions, FastrpcError> {
                Ok(Functions {
                    $($name: {
                        // SAFETY: the type is the one FastRPC's header gives this function.
                        let found = unsafe { library.get::<$type>(concat!(stringify!($name), "\0").as_bytes()) };
                        *found.map_err(|_| FastrpcError::Symbol { path: path.into(), symbol: stringify!($name) })?
                    },)*
                    // SAFETY: as above.
                    rpcmem_alloc2: unsafe { library.get(b"rpcmem_alloc2\0") }.ok().map(|found| *found),
                })
            }
        }
    };
}

functions! {
    rpcmem_alloc: unsafe extern "C" fn(c_int, u32, c_int) -> *mut c_void;
    rpcmem_free: unsafe extern "C" fn(*mut c_void);
    rpcmem_to_fd: unsafe extern "C" fn(*mut c_void) -> c_int;
    fastrpc_mmap: unsafe extern "C" fn(c_int, c_int, *mut c_void, c_int, usize, u32) -> c_int;
    fastrpc_munmap: unsafe extern "C" fn(c_int, c_int, *mut c_void, usize) -> c_int;
    remote_session_control: unsafe extern "C" fn(u32, *mut c_void, u32) -> c_int;
    remote_handle_control: unsafe extern "C" fn(u32, *mut c_void, u32) -> c_int;
    remote_handle64_open: unsafe extern "C" fn(*const c_char, *mut u64) -> c_int;
    remote_handle64_invoke: unsafe extern "C" fn(u64, u32, *mut RemoteArg) -> c_int;
    remote_handle64_close: unsafe extern "C" fn(u64) -> c_int;
    remote_handle64_control: unsafe extern "C" fn(u64, u32, *mut c_void, u32) -> c_int;
    dspqueue_create: unsafe extern "C" fn(
        c_int, u32, u32, u32, QueueCallback, QueueCallback, *mut c_void, *mut QueueHandle,
    ) -> c_int;
    dspqueue_export: unsafe extern "C" fn(QueueHandle, *mut u64) -> c_int;
    dspqueue_close: unsafe extern "C" fn(QueueHandle) -> c_int;
    dspqueue_write:
        unsafe extern "C" fn(QueueHandle, u32, u32, *mut c_void, u32, *const u8, u32) -> c_int;
    dspqueue_read: unsafe extern "C" fn(
        QueueHandle, *mut u32, u32, *mut u32, *mut c_void, u32, *mut u32, *mut u8, u32,
    ) -> c_int;
}

/// 0 is success.
fn done(code: c_int) -> Result<(), i32> {
    if code == 0 { Ok(()) } else { Err(code) }
}

fn microseconds(time: Duration) -> u32 {
    // All ones would be for ever.
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX).min(u32::MAX - 1)
}

/// A loaded driver. FastRPC may be called from any thread.
#[derive(Clone, Copy)]
pub(super) struct Driver(Functions);

/// A buffer of the driver's, known to the DSP's process by its descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapped {
    pub(super) memory: NonNull<u8>,
    pub(super) file: c_int,
}

/// A queue. Its owner closes it once.
pub(super) struct Queue(QueueHandle);

// SAFETY: the handle is a name for the driver, which locks for itself.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Driver {
    /// Loads the library, and leaves it loaded: threads of its own may outlive any session.
    pub(super) fn load(path: &Path) -> Result<Driver, FastrpcError> {
        // SAFETY: loading runs the library's constructors; it is the one the operator named, or
        // the system's own of that name.
        let library = unsafe { Library::new(path) };
        let library =
            library.map_err(|error| FastrpcError::Driver { path: path.into(), why: error.to_string() })?;
        let functions = Functions::of(&library, path)?;
        std::mem::forget(library);
        Ok(Driver(functions))
    }

    fn session_control<T>(&self, request: u32, data: &mut T) -> Result<(), i32> {
        let (pointer, bytes) = (std::ptr::from_mut(data).cast(), size_of::<T>() as u32);
        // SAFETY: each caller below passes the structure that remote.h gives for this request.
        done(unsafe { (self.0.remote_session_control)(request, pointer, bytes) })
    }

    /// What the driver says of the DSP.
    pub(super) fn capability(&self, attribute: u32) -> Result<u32, i32> {
        let mut data = Capability { domain: DOMAIN as u32, attribute, capability: 0 };
        let (pointer, bytes) = (std::ptr::from_mut(&mut data).cast(), size_of::<Capability>() as u32);
        // SAFETY: the structure is the one remote.h gives for this request.
        done(unsafe { (self.0.remote_handle_control)(GET_DSP_INFO, pointer, bytes) })?;
        Ok(data.capability)
    }

    /// The DSP's process may run libraries that nobody signed.
    pub(super) fn allow_unsigned(&self) -> Result<(), i32> {
        self.session_control(UNSIGNED_MODULE, &mut DomainAndValue { domain: DOMAIN, value: 1 })
    }

    /// Has the end of the DSP's process told to the notice of this number.
    pub(super) fn watch(&self, number: usize) -> Result<(), i32> {
        let context = std::ptr::without_provenance_mut(number);
        self.session_control(
            STATUS_NOTIFICATIONS,
            &mut Notify { context, domain: DOMAIN, function: notice::told },
        )
    }

    /// Where a module of the default session is opened.
    pub(super) fn uri(&self, module: &str) -> CString {
        let mut uri = vec![0_u8; module.len() + 64];
        let mut data = GetUri {
            domain_name: DOMAIN_NAME.as_ptr(),
            domain_name_len: DOMAIN_NAME.count_bytes() as u32,
            session: 0,
            module: module.as_ptr().cast(),
            module_len: module.len() as u32,
            uri: uri.as_mut_ptr().cast(),
            uri_len: uri.len() as u32 - 1,
        };
        let made = self.session_control(GET_URI, &mut data);
        // The last byte was not lent, so there is an end.
        let text = CStr::from_bytes_until_nul(&uri).unwrap_or_default();
        if made.is_ok() && !text.is_empty() {
            return text.to_owned();
        }
        // Older drivers make none; theirs is plain.
        CString::new(format!("{module}&_dom=cdsp")).unwrap_or_default()
    }

    /// Makes the DSP's process if there is none, and loads the module.
    pub(super) fn open(&self, uri: &CStr) -> Result<u64, i32> {
        let mut handle = 0;
        // SAFETY: the text ends in zero, the handle is written to.
        done(unsafe { (self.0.remote_handle64_open)(uri.as_ptr(), &mut handle) })?;
        let mut latency = Latency { enable: 1, microseconds: 100 };
        let (pointer, bytes) = (std::ptr::from_mut(&mut latency).cast(), size_of::<Latency>() as u32);
        // A wish; drivers that do not know it are slower.
        // SAFETY: the structure is the one remote.h gives for this request.
        let _ = unsafe { (self.0.remote_handle64_control)(handle, CONTROL_LATENCY, pointer, bytes) };
        Ok(handle)
    }

    /// Calls a method with a buffer in and one out, or with neither.
    pub(super) fn invoke(
        &self,
        handle: u64,
        method: u32,
        input: Option<&[u8]>,
        output: Option<&mut [u8]>,
    ) -> Result<(), i32> {
        let scalars = method << 24 | u32::from(input.is_some()) << 16 | u32::from(output.is_some()) << 8;
        let input =
            input.map(|bytes| RemoteArg { pointer: bytes.as_ptr().cast_mut().cast(), bytes: bytes.len() });
        let output = output.map(|bytes| RemoteArg { pointer: bytes.as_mut_ptr().cast(), bytes: bytes.len() });
        let mut arguments: Vec<RemoteArg> = input.into_iter().chain(output).collect();
        // SAFETY: as many buffers as the scalars say, in first; those in are only read, and all
        // outlive the call.
        done(unsafe { (self.0.remote_handle64_invoke)(handle, scalars, arguments.as_mut_ptr()) })
    }

    /// Unloads the module; with the last one the DSP's process ends.
    pub(super) fn close(&self, handle: u64) {
        // SAFETY: a name for the driver, which looks it up.
        let _ = unsafe { (self.0.remote_handle64_close)(handle) };
    }

    /// Ends the DSP's process whatever it does; calls into it return.
    pub(super) fn kill(&self) {
        let mut domain: c_int = DOMAIN;
        let _ = self.session_control(PROCESS_KILL, &mut domain);
    }

    /// Makes a buffer that the DSP's process may map. The call that failed and its code.
    pub(super) fn make(&self, bytes: usize) -> Result<Mapped, (&'static str, i32)> {
        let memory = match (self.0.rpcmem_alloc2, c_int::try_from(bytes)) {
            // SAFETY: a plain allocation.
            (Some(alloc), _) => unsafe { alloc(HEAP_SYSTEM, CACHED, bytes) },
            // SAFETY: as above.
            (None, Ok(small)) => unsafe { (self.0.rpcmem_alloc)(HEAP_SYSTEM, CACHED, small) },
            (None, Err(_)) => std::ptr::null_mut(),
        };
        let Some(memory) = NonNull::new(memory.cast::<u8>()) else { return Err(("rpcmem_alloc", 0x02)) };
        // SAFETY: what was just made.
        let file = unsafe { (self.0.rpcmem_to_fd)(memory.as_ptr().cast()) };
        let mapped = Mapped { memory, file };
        let shown = if file < 0 {
            Err(("rpcmem_to_fd", file))
        } else {
            // SAFETY: the descriptor and the memory of one buffer, with its size.
            done(unsafe {
                (self.0.fastrpc_mmap)(DOMAIN, file, memory.as_ptr().cast(), 0, bytes, MAP_FD_DELAYED)
            })
            .map_err(|code| ("fastrpc_mmap", code))
        };
        if shown.is_err() {
            // SAFETY: made above, and nobody knows of it.
            unsafe { (self.0.rpcmem_free)(memory.as_ptr().cast()) };
        }
        shown.map(|()| mapped)
    }

    /// Takes back a buffer of this size, made by [`Driver::make`].
    pub(super) fn free(&self, buffer: Mapped, bytes: usize) {
        let memory = buffer.memory.as_ptr().cast();
        // SAFETY: the caller owns it and gives it up; nothing points into it any more.
        unsafe {
            let _ = (self.0.fastrpc_munmap)(DOMAIN, buffer.file, memory, bytes);
            (self.0.rpcmem_free)(memory);
        }
    }

    /// Makes a queue; errors of its own are told to the notice of this number.
    pub(super) fn queue(&self, number: usize) -> Result<Queue, i32> {
        let mut queue = std::ptr::null_mut();
        let context = std::ptr::without_provenance_mut(number);
        // SAFETY: the functions and the context stay valid for ever: the context is a number.
        done(unsafe {
            (self.0.dspqueue_create)(
                DOMAIN,
                0,
                QUEUE_BYTES,
                QUEUE_BYTES,
                None,
                Some(notice::queue_failed),
                context,
                &mut queue,
            )
        })?;
        Ok(Queue(queue))
    }

    /// The queue's name for the DSP.
    pub(super) fn export(&self, queue: &Queue) -> Result<u64, i32> {
        let mut id = 0;
        // SAFETY: an open queue; the name is written to.
        done(unsafe { (self.0.dspqueue_export)(queue.0, &mut id) })?;
        Ok(id)
    }

    /// Puts a message into the queue.
    pub(super) fn write(&self, queue: &Queue, message: &[u8], wait: Duration) -> Result<(), i32> {
        let (bytes, wait) = (message.len() as u32, microseconds(wait));
        // SAFETY: an open queue; the message is read for its length.
        done(unsafe {
            (self.0.dspqueue_write)(queue.0, 0, 0, std::ptr::null_mut(), bytes, message.as_ptr(), wait)
        })
    }

    /// Takes a message out of the queue, and returns its bytes.
    pub(super) fn read(&self, queue: &Queue, message: &mut [u8], wait: Duration) -> Result<usize, i32> {
        let (mut flags, mut buffers, mut bytes) = (0, 0, 0);
        let (most, wait) = (message.len() as u32, microseconds(wait));
        // SAFETY: an open queue; room for no buffers and for `most` bytes of message.
        done(unsafe {
            (self.0.dspqueue_read)(
                queue.0,
                &mut flags,
                0,
                &mut buffers,
                std::ptr::null_mut(),
                most,
                &mut bytes,
                message.as_mut_ptr(),
                wait,
            )
        })?;
        Ok(bytes as usize)
    }

    /// Closes a queue.
    pub(super) fn close_queue(&self, queue: Queue) {
        // SAFETY: an open queue, given up here.
        let _ = unsafe { (self.0.dspqueue_close)(queue.0) };
    }
}
