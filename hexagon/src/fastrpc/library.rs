//! The DSP's library for the phone at hand, as a file where FastRPC looks.

use super::error::FastrpcError;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

include!(concat!(env!("OUT_DIR"), "/libraries.rs"));

/// The DSP's versions that have a library, oldest first.
const ARCHS: [u32; 4] = [73, 75, 79, 81];

/// Environment variables of FastRPC's; the first goes before the second.
const LIBRARY_PATHS: [&str; 2] = ["DSP_LIBRARY_PATH", "ADSP_LIBRARY_PATH"];

/// The library for a DSP that says it is `reported` (0x73 for v73): the newest that is not newer.
pub(super) fn version_for(reported: u32) -> Result<u32, FastrpcError> {
    // Digits as they are read; the upper bytes are the chip's.
    let digits = reported & 0xff;
    let version = (digits >> 4) * 10 + (digits & 0xf);
    let fitting = ARCHS.into_iter().rev().find(|arch| *arch <= version);
    fitting.ok_or(FastrpcError::Arch { found: digits })
}

/// A library's file name.
pub(super) fn file_name(version: u32) -> String {
    format!("libtandem-dsp-v{version}.so")
}

/// Sees to it that the library is in `folder`: the embedded one is written there unless the very
/// same is there; without an embedded one what is there is taken.
pub(super) fn place(version: u32, folder: &Path) -> Result<PathBuf, FastrpcError> {
    let file = folder.join(file_name(version));
    let embedded = EMBEDDED.iter().find(|(arch, _)| *arch == version);
    match embedded {
        Some((_, bytes)) => {
            write_out(&file, bytes).map_err(|source| FastrpcError::WriteOut { file: file.clone(), source })?
        }
        None if file.exists() => {
            trusted(folder).map_err(|source| FastrpcError::WriteOut { file: file.clone(), source })?;
        }
        None => return Err(FastrpcError::Library { file }),
    }
    if !is_announced(folder) {
        return Err(FastrpcError::Path { folder: folder.into() });
    }
    Ok(file)
}

/// Writes a file whole or not at all, into a folder that is ours.
fn write_out(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    trusted(folder)?;
    if std::fs::read(file).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let draft = file.with_extension(format!("{}.draft", std::process::id()));
    let written =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft);
    let done = written.and_then(|mut to| to.write_all(bytes)).and_then(|()| std::fs::rename(&draft, file));
    if done.is_err() {
        let _ = std::fs::remove_file(&draft);
    }
    done
}

/// What the DSP loads may come from nobody but this user and the system's owner, who may have put
/// the libraries into the image.
fn trusted(folder: &Path) -> std::io::Result<()> {
    let about = std::fs::symlink_metadata(folder)?;
    let owners = [0, rustix::process::geteuid().as_raw()];
    if about.is_dir() && owners.contains(&about.uid()) && about.mode() & 0o022 == 0 {
        return Ok(());
    }
    let others = "the folder is a link, belongs to others or may be written by them";
    Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, others))
}

/// Whether FastRPC looks for libraries in this folder.
fn is_announced(folder: &Path) -> bool {
    let paths = LIBRARY_PATHS.iter().find_map(std::env::var_os).unwrap_or_default();
    paths.to_string_lossy().split(';').any(|path| Path::new(path) == folder)
}

/// Has FastRPC look in `folder` before the folders it looks in already.
///
/// # Safety
///
/// No other thread may read or write the environment meanwhile: call it before there is one.
pub(super) unsafe fn announce(folder: &Path) {
    for name in LIBRARY_PATHS {
        let mut paths = folder.as_os_str().to_owned();
        if let Some(before) = std::env::var_os(name) {
            paths.push(";");
            paths.push(before);
        }
        // SAFETY: the caller's promise.
        unsafe { std::env::set_var(name, paths) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All of `dsp/` but other ports, tests, what the vendor's linker brings and what stands in for
    /// instructions that only its compiler assembles.
    #[test]
    fn the_build_with_the_sdk_has_every_source() {
        let dsp = Path::new(env!("CARGO_MANIFEST_DIR")).join("dsp");
        let mut sources = Vec::new();
        for folder in ["", "kernels/", "port/sdk/"] {
            for file in std::fs::read_dir(dsp.join(folder)).unwrap().flatten() {
                let name = file.file_name().into_string().unwrap();
                if name.ends_with(".c") && !["arithmetic.c", "hmx_soft.c"].contains(&&*name) {
                    sources.push(format!("{folder}{name}"));
                }
            }
        }
        sources.sort();
        let cmake = std::fs::read_to_string(dsp.join("CMakeLists.txt")).unwrap();
        let listed = cmake.split_once("SHARED").unwrap().1.split_once(')').unwrap().0;
        assert_eq!(listed.split_whitespace().collect::<Vec<_>>(), sources);
    }

    #[test]
    fn the_newest_library_that_is_not_newer_than_the_dsp_is_taken() {
        let taken = [0x73, 0x75, 0x8779, 0x81, 0x85].map(|reported| version_for(reported).unwrap());
        assert_eq!(taken, [73, 75, 79, 81, 81]);
        let old = version_for(0x69).unwrap_err().to_string();
        assert!(old.contains("0x69") && old.contains("--device cpu"), "{old}");
    }

    #[test]
    fn a_library_is_written_whole_replaced_when_it_differs_and_never_into_an_open_folder() {
        use std::os::unix::fs::PermissionsExt;
        let folder = Path::new(env!("OUT_DIR")).join(format!("written-{}", std::process::id()));
        let file = folder.join("libtandem-dsp-v73.so");
        write_out(&file, b"one").unwrap();
        write_out(&file, b"two").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "no draft is left");
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(write_out(&file, b"three").is_err());
        assert!(write_out(&file, b"two").is_err(), "the same contents may be changed after the look");
        assert_eq!(std::fs::read(&file).unwrap(), b"two");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
