//! The models inside this program: Pebble and what drafts for it.
//!
//! They are compiled in, 30 MB in all, so that the program is one file to copy and answers on a machine
//! without a network, a cache or a models folder. `cargo install --git` builds it that way too. Only a
//! package registry with a limit on the size of a crate (crates.io: 10 MB) would need them next to the
//! program instead; the change would be in this file alone. Without the cargo feature `builtin` there are none.

use checkpoint::Checkpoint;

use crate::report::Advised;

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

#[cfg(feature = "builtin")]
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
#[cfg(not(feature = "builtin"))]
pub(crate) static ALL: &[Builtin] = &[];

/// Every model inside this program.
#[cfg(feature = "builtin")]
pub(crate) static ALL: &[Builtin] = &[
    Builtin {
        name: "pebble",
        about: "a small mixture of experts that tells stories, does arithmetic and calls tools",
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
    pub(crate) fn find(name: &str) -> Result<&'static Builtin, Advised> {
        ALL.iter().find(|builtin| builtin.name == name).ok_or_else(|| {
            let message = format!("this program was built without {name}");
            let hint = "name a model by its folder, or build with the cargo feature `builtin`";
            Advised::new(message, hint)
        })
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

    #[cfg(not(feature = "builtin"))]
    #[test]
    fn a_model_that_was_left_out_is_reported_with_advice() {
        let error = anyhow::Error::from(Builtin::find(DEFAULT).err().unwrap());
        assert_eq!(error.to_string(), "this program was built without pebble");
        assert!(crate::report::hints(&error)[0].contains("`builtin`"));
    }

    #[cfg(feature = "builtin")]
    #[test]
    fn every_builtin_alias_is_here() {
        for alias in hub::aliases() {
            if let hub::Target::Builtin(name) = alias.target {
                let builtin = Builtin::find(name).unwrap();
                assert!(builtin.open().unwrap().total_bytes() < builtin.size_bytes());
            }
        }
        assert!(Builtin::find(DEFAULT).is_ok());
    }
}
