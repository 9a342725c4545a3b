//! Files that change under a bank.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::sync::Arc;

use checkpoint::Projection;
use experts::device::{Fault, Faulty, Rule};

use crate::support::{EXPERTS, Model, Settings, file, within_patience};

#[test]
// Other systems may refuse to replace a file that is open.
#[cfg(unix)]
fn a_file_replaced_by_a_rename_reads_on_as_it_was() {
    within_patience(|| {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::write(folder.path());
        let bank = model.bank(model.device(), Settings { kept: 2, ..Settings::default() });
        assert_eq!(model.visit(&bank, 0, &[1, 2, 3], 1, 2).failed, []);
        let new = folder.path().join("new");
        std::fs::write(&new, file(1)).unwrap();
        std::fs::rename(&new, folder.path().join("model.safetensors")).unwrap();
        let all: Vec<u32> = (0..EXPERTS as u32).collect();
        assert_eq!(model.visit(&bank, 1, &all, 1, 2).failed, []);
        std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
        assert_eq!(model.visit(&bank, 0, &all, 1, 2).failed, []);
    });
}

#[test]
fn a_file_overwritten_in_place_gives_no_expert_of_another_version() {
    within_patience(|| {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::write(folder.path());
        let bank = model.bank(model.device(), Settings { kept: 4, ..Settings::default() });
        assert_eq!(model.visit(&bank, 0, &[1, 2], 1, 2).failed, []);
        // Long enough after it was written that the clock of the file system has moved on.
        std::thread::sleep(std::time::Duration::from_millis(30));
        let path = folder.path().join("model.safetensors");
        let mut open = OpenOptions::new().write(true).open(&path).unwrap();
        open.seek(SeekFrom::Start(0)).unwrap();
        open.write_all(&file(1)).unwrap();
        open.flush().unwrap();
        // What was read before is right and stays; from now on nothing can be read.
        let visited = model.visit(&bank, 0, &[1, 7, 2, 8], 1, 2);
        visited.check_failed(&[7, 8], "was changed while it was in use");
        visited.check_failed(&[7, 8], path.to_str().unwrap());
        assert_eq!(visited.came, [1, 2]);
        model.visit(&bank, 1, &[7], 1, 2).check_failed(&[7], "was changed");
        assert_eq!(bank.statistics().failed, 3);
        assert_eq!(model.visit(&bank, 0, &[1, 2], 1, 2).failed, []);
    });
}

#[test]
fn a_read_that_the_change_overtook_does_not_count() {
    within_patience(|| {
        let model = Model::new();
        // Other bytes come, once; only the file's identity shows it.
        let rule = model.rule(0, 5, Projection::Down, Fault::Overwritten);
        let rule = Rule { attempts: 0..1, ..rule };
        for (kept, rows) in [(1, 1), (6, 1), (6, 100)] {
            let device = Arc::new(Faulty::new(model.device(), 0).with_rule(rule.clone()));
            let bank = model.bank(device, Settings { kept, staging: 2, ..Settings::default() });
            assert_eq!(model.visit(&bank, 0, &[2, 4], rows, 2).failed, []);
            // Those that landed before are right, those after it are not known to be.
            let visited = model.visit(&bank, 0, &[5, 2, 7], rows, 2);
            assert!(visited.failed.iter().any(|(id, _)| *id == 5), "{visited:?}");
            assert!(visited.failed.iter().all(|(_, why)| why.contains("was changed")));
            model.visit(&bank, 0, &[5], rows, 2).check_failed(&[5], "was changed");
        }
    });
}

#[test]
fn a_file_that_is_cut_fails_what_was_cut_off() {
    within_patience(|| {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::write(folder.path());
        let bank = model.bank(model.device(), Settings::default());
        assert_eq!(model.visit(&bank, 0, &[1, 2], 1, 2).failed, []);
        let path = folder.path().join("model.safetensors");
        let end = model.layout(0).slice(EXPERTS - 1, Projection::Down).weight.offset;
        OpenOptions::new().write(true).open(&path).unwrap().set_len(end + 100).unwrap();
        let visited = model.visit(&bank, 1, &[4, 5], 1, 2);
        visited.check_failed(&[4, 5], path.to_str().unwrap());
        // Even what is still there cannot be trusted any more.
        model.visit(&bank, 0, &[9], 1, 2).check_failed(&[9], path.to_str().unwrap());
        assert_eq!(model.visit(&bank, 0, &[1, 2], 1, 2).failed, []);
    });
}
