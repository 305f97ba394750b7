//! The phone's transport: FastRPC and its queue.
//!
//! ```text
//! Fastrpc (Link) ─┐                          ┌─ 64-byte messages ─▶ dspqueue ─▶ skel.c ─▶ executor.c
//! memory ─────────┼▶ Session ─▶ Driver ──────┼─ start, stop, power ─▶ skel.c
//! power handler ──┘  (session) (libcdsprpc)  └─ buffers (rpcmem)
//! ```
//!
//! The library for the DSP ([`FastrpcConfig::folder`]) is the one that `cargo xtask hexagon` has
//! built: embedded where it was there when this crate was built, and then written out when a
//! session is opened, else looked for in the folder. FastRPC reads it as a file in a folder that
//! the environment names: [`set_library_path`].
//!
//! Tested against a stand-in for the phone (`dsp/test/phone/`); not run on hardware.

mod driver;
mod error;
mod library;
mod methods;
mod notice;
mod session;

pub use error::FastrpcError;

use crate::Link;
use crate::abi::{Reply, Request};
use crate::device::{Hexagon, HexagonConfig, HexagonError};
use crate::memory::Shared;
use session::{Session, SessionMemory, SessionPower};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tandem_program::{Exactness, Power};

/// Environment variable that names the driver's library.
const DRIVER: &str = "TANDEM_CDSPRPC";
/// Environment variable that names the folder of `cargo xtask hexagon`.
const BUILT: &str = "TANDEM_HEXAGON";
/// Environment variable that names a folder to write the library to.
const WRITTEN: &str = "TANDEM_DSP_FOLDER";

/// HVX float rounds otherwise than IEEE asks, by a few units in the last place of each operation.
const HVX_FLOAT: Exactness = Exactness::Relative(2e-3);

/// How to reach the DSP.
#[derive(Clone, Debug)]
pub struct FastrpcConfig {
    /// The driver's library. Default `libcdsprpc.so`, wherever the linker finds it.
    pub driver: PathBuf,
    /// Folder of the DSP's library; the embedded one is written there.
    pub folder: PathBuf,
    /// Worker threads of the DSP, up to 8. Default 0: one a vector unit.
    pub workers: u32,
    /// On-chip memory in bytes, a multiple of 4096. Default 0: all there is.
    pub vtcm_bytes: u32,
    /// A batch, or a call for votes, that takes longer ends the session. Default ten seconds.
    pub budget: Duration,
}

impl FastrpcConfig {
    /// What the environment says: `TANDEM_CDSPRPC` names the driver's library, `TANDEM_HEXAGON` the folder
    /// that `cargo xtask hexagon` has filled. Without the latter the embedded library is written
    /// to the folder that `TANDEM_DSP_FOLDER` names, else to one of the user's own.
    pub fn find() -> FastrpcConfig {
        let named = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let own = || match named("XDG_RUNTIME_DIR") {
            Some(folder) => folder.join("tandem-dsp"),
            None => {
                let user = rustix::process::geteuid().as_raw();
                std::env::temp_dir().join(format!("tandem-dsp-{user}"))
            }
        };
        let folder =
            named(BUILT).map(|built| built.join("phone")).or_else(|| named(WRITTEN)).unwrap_or_else(own);
        FastrpcConfig {
            driver: named(DRIVER).unwrap_or_else(|| "libcdsprpc.so".into()),
            folder,
            workers: 0,
            vtcm_bytes: 0,
            budget: Duration::from_secs(10),
        }
    }
}

/// Has FastRPC look for libraries in the folder of these settings first.
///
/// # Safety
///
/// It changes the environment: no other thread may run yet.
pub unsafe fn set_library_path(config: &FastrpcConfig) {
    // SAFETY: the caller's promise.
    unsafe { library::announce(&config.folder) }
}

/// A session with a phone's DSP.
pub struct Fastrpc {
    session: Arc<Session>,
    exactness: Exactness,
    budget: Duration,
}

impl Fastrpc {
    /// Opens a session, with at most `bytes` of shared memory.
    ///
    /// # Errors
    ///
    /// Whatever a phone lacks, and what to do about it.
    pub fn open(config: &FastrpcConfig, bytes: u64) -> Result<(Fastrpc, Shared), FastrpcError> {
        let (session, started) = Session::open(config)?;
        let session = Arc::new(session);
        let shared = Shared::of_driver(bytes, Box::new(SessionMemory(session.clone())));
        let exactness = if started.exact == 1 { Exactness::Bits } else { HVX_FLOAT };
        Ok((Fastrpc { session, exactness, budget: config.budget }, shared))
    }
}

impl Link for Fastrpc {
    fn name(&self) -> &str {
        "hexagon"
    }

    fn exactness(&self) -> Exactness {
        self.exactness
    }

    fn power(&self) -> Option<Arc<dyn Power>> {
        Some(Arc::new(SessionPower(self.session.clone())))
    }

    fn send(&mut self, request: &Request) -> Result<(), String> {
        self.session.send(&request.to_bytes())
    }

    fn receive(&mut self) -> Result<Reply, String> {
        self.session.receive(self.budget).map(|bytes| Reply::from_bytes(&bytes))
    }
}

impl Drop for Fastrpc {
    fn drop(&mut self) {
        // The power handler may be held by others: the session ends with its queue all the same.
        self.session.end();
    }
}

impl Hexagon {
    /// A device over the phone's DSP.
    ///
    /// # Errors
    ///
    /// As [`Fastrpc::open`].
    pub fn fastrpc(config: &HexagonConfig, fastrpc: &FastrpcConfig) -> Result<Hexagon, HexagonError> {
        let (link, shared) = Fastrpc::open(fastrpc, config.memory)?;
        Hexagon::new(config, shared, Box::new(link))
    }
}
