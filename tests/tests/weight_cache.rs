//! The daemon's cache of repacked weights: a second start finds what the first one kept, and answers the same.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use tandem_tests::{demo_model, programs};

/// Logits of a prompt, from a daemon with this cache folder, and what it logged.
fn logits(cache: &Path, folder: &Path) -> (Vec<u8>, String) {
    let (tokens, out) = (folder.join("ids.json"), folder.join("out.safetensors"));
    std::fs::write(&tokens, "[[1, 2, 3, 4, 5, 6, 7, 8, 9]]").unwrap();
    let mut command = Command::new(&programs().tandem);
    command.arg("generate").arg("--model").arg(demo_model()).arg("--tokens").arg(tokens);
    command.arg("--logits").arg(&out).env("CACHE_DIRECTORY", cache);
    let run = command.output().unwrap();
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{text}");
    (std::fs::read(out).unwrap(), text)
}

/// Names and inode numbers of the kept weights: a file that was written again has another.
fn kept(cache: &Path) -> Vec<(String, u64)> {
    use std::os::unix::fs::DirEntryExt;
    let Ok(files) = std::fs::read_dir(cache.join("weights")) else { return Vec::new() };
    let files = files.map(|file| file.unwrap());
    let mut all: Vec<_> = files.map(|f| (f.file_name().to_string_lossy().into_owned(), f.ino())).collect();
    all.sort();
    all
}

#[test]
fn a_second_start_maps_the_weights_that_the_first_one_kept() {
    let (cache, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (first, _) = logits(cache.path(), folder.path());
    let files = kept(cache.path());
    assert!(!files.is_empty());
    assert!(files.iter().all(|(name, _)| name.ends_with(".repacked")), "{files:?}");
    let (second, _) = logits(cache.path(), folder.path());
    assert!(first == second, "other logits with weights from the cache");
    assert_eq!(kept(cache.path()), files, "written again");
}

#[test]
fn a_folder_that_others_can_write_to_is_not_used_and_said_so() {
    let (cache, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let weights = cache.path().join("weights");
    std::fs::create_dir(&weights).unwrap();
    std::fs::set_permissions(&weights, std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = Command::new(&programs().tandemd);
    command.arg("check").arg("--model").arg(demo_model()).env("CACHE_DIRECTORY", cache.path());
    let run = command.output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr).into_owned() + &String::from_utf8_lossy(&run.stdout);
    assert!(said.contains("can be written by others"), "{said}");
    logits(cache.path(), folder.path());
    assert!(kept(cache.path()).is_empty());
}
