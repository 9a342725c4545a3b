//! The models inside this program: Pebble and what drafts for it.
//!
//! They are compiled in, 30 MB in all, so that the program is one file to copy and answers on a machine
//! without a network, a cache or a models folder. `cargo install --git` builds it that way too. Only a
//! package registry with a limit on the size of a crate (crates.io: 10 MB) would need them beside the
//! program instead; the change would be in this file alone.

use checkpoint::Checkpoint;

/// What runs when no model is named.
pub(crate) const DEFAULT: &str = "pebble";

/// A model inside this program.
pub(crate) struct Builtin {
    /// What the user types.
    pub(crate) name: &'static str,
    /// What it is, in a few words.
    pub(crate) about: &'static str,
    /// File names and their bytes.
    pub(crate) files: &'static [(&'static str, &'static [u8])],
}

macro_rules! files {
    ($folder:literal: $($file:literal),+) => {
        &[$((
            $file,
            include_bytes!(concat!(
                env!("CARGO_MANIFEST_DIR"), "/../../models/", $folder, "/", $file
            )),
        )),+]
    };
}

/// Every model inside this program.
pub(crate) static ALL: [Builtin; 3] = [
    Builtin {
        name: "pebble",
        about: "a small mixture of experts that tells stories, reckons and calls tools",
        files: files!("pebble": "config.json", "generation_config.json", "model.safetensors",
            "mtp.safetensors", "model.safetensors.index.json", "tokenizer.json",
            "tokenizer_config.json", "chat_template.jinja"),
    },
    Builtin {
        name: "pebble-draft",
        about: "a smaller, dense model with Pebble's vocabulary, to draft for it",
        files: files!("pebble-draft": "config.json", "generation_config.json", "model.safetensors",
            "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    },
    Builtin {
        name: "pebble-dflash",
        about: "a DFlash head that drafts blocks of sixteen tokens for Pebble; not a model by itself",
        files: files!("pebble-dflash": "config.json", "model.safetensors"),
    },
];

impl Builtin {
    /// The model of this name.
    pub(crate) fn find(name: &str) -> Option<&'static Builtin> {
        ALL.iter().find(|builtin| builtin.name == name)
    }

    /// Opens it.
    pub(crate) fn open(&self) -> checkpoint::Result<Checkpoint> {
        Checkpoint::from_memory(self.files)
    }

    /// The size of its files.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.files.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_builtin_alias_is_here() {
        for alias in hub::aliases() {
            if let hub::Target::Builtin(name) = alias.target {
                let builtin = Builtin::find(name).unwrap();
                assert!(builtin.open().unwrap().total_bytes() < builtin.size_bytes());
            }
        }
        assert!(Builtin::find(DEFAULT).is_some());
    }
}
