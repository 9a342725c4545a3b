//! How text is split before pairs are joined, by the names that files give.
//!
//! The patterns are those of the models' own tokenizer.json files.

use super::Vocabulary;
use crate::{Error, Result};

/// How a text is split.
pub(super) struct Splits {
    /// One after the other, each on what the one before left.
    pub(super) patterns: Vec<String>,
    /// Whether letters and their accents are composed first. Files do not say this.
    pub(super) composes: bool,
    /// Whether a whole word that is a token is taken as it is.
    pub(super) ignores_merges: bool,
    /// Whether a text begins with `bos` where the file does not say.
    pub(super) adds_bos: bool,
}

/// GPT-2's.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Endings of English words, in either case.
const ENDINGS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)";

/// White space, with which most patterns end.
const TAIL: &str = r"|\s*[\r\n]+|\s+(?!\S)|\s+";

/// One digit, and up to three.
const DIGIT: &str = r"\p{N}";
const DIGITS: &str = r"\p{N}{1,3}";

const PUNCTUATION: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##;

/// Words after ENDINGS, numbers as given, other characters with the line breaks after them.
fn words(numbers: &str) -> String {
    format!(
        r"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{TAIL}"
    )
}

/// Words cut where upper case follows lower case; `within` narrows letters down.
fn cased(endings: &str, numbers: &str, within: &str, slashes: &str) -> String {
    let upper = format!(r"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{within}]");
    let lower = format!(r"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{within}]");
    let before = r"[^\r\n\p{L}\p{N}]?";
    format!(
        r"{before}{upper}*{lower}+{endings}|{before}{upper}+{lower}*{endings}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n{slashes}]*{TAIL}"
    )
}

impl Splits {
    /// The one that a file names, or the one that its other facts suggest.
    pub(super) fn find(vocabulary: &Vocabulary, warnings: &mut Vec<String>) -> Result<Splits> {
        let named = vocabulary.pre.as_deref().filter(|pre| !pre.is_empty() && *pre != "default");
        let pre = match named {
            Some(pre) => pre,
            None => {
                let guess = guess(vocabulary).ok_or_else(|| Error::Vocabulary {
                    reason: format!(
                        "the file does not say how text is split (`tokenizer.ggml.pre`), and for the architecture \
                         `{}` it cannot be guessed",
                        vocabulary.architecture
                    ),
                })?;
                warnings.push(format!(
                    "the file does not say how text is split into words; it is split as `{guess}` does"
                ));
                guess
            }
        };
        let patterns = patterns(pre).ok_or_else(|| Error::Vocabulary {
            reason: format!("text that is split as `{pre}` does is not supported"),
        })?;
        let is_llama = LLAMA.contains(&pre);
        Ok(Splits {
            patterns,
            composes: matches!(pre, "qwen2" | "qwen35" | "deepseek-r1-qwen"),
            ignores_merges: is_llama || matches!(pre, "tekken" | "minicpm5"),
            adds_bos: is_llama || pre == "tekken",
        })
    }
}

/// Names of Llama 3's way.
const LLAMA: [&str; 8] =
    ["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"];

fn guess(vocabulary: &Vocabulary) -> Option<&'static str> {
    // Old files of Ollama.
    if vocabulary.tokens.get(128_009).is_some_and(|token| token == "<|eot_id|>") {
        return Some("llama-bpe");
    }
    let architecture = vocabulary.architecture.as_str();
    let starts = |prefix: &str| architecture.starts_with(prefix);
    match architecture {
        _ if starts("qwen35") => Some("qwen35"),
        _ if starts("qwen2") || starts("qwen3") => Some("qwen2"),
        _ if starts("gpt-oss") || starts("gptoss") => Some("gpt-4o"),
        _ => None,
    }
}

/// The patterns of a name.
fn patterns(pre: &str) -> Option<Vec<String>> {
    let one = |pattern: String| Some(vec![pattern]);
    let several = |patterns: &[&str]| Some(patterns.iter().map(|&p| p.to_owned()).collect());
    match pre {
        "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" | "exaone4" | "mellum" | "modern-bert"
        | "roberta-bpe" | "gigachat" | "a.x-4.0" | "granite-docling" | "trillion" => {
            one(GPT2.to_owned())
        }
        "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b"
        | "mellum2" => several(&[DIGIT, GPT2]),
        "glm4" | "chatglm-bpe" | "dbrx" | "smaug-bpe" => one(words(DIGITS)),
        _ if LLAMA.contains(&pre) => one(words(DIGITS)),
        "qwen2" | "deepseek-r1-qwen" | "stablelm2" | "hunyuan" | "solar-open" | "megrez"
        | "grok-2" | "kormo" | "f2llmv2" => one(words(DIGIT)),
        "qwen35" => one(format!(
            r"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{TAIL}"
        )),
        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => {
            one(cased(&format!("{ENDINGS}?"), DIGITS, "", "/"))
        }
        "tekken" => one(cased("", DIGIT, "", "/")),
        "kimi-k2" => {
            let cased = cased(&format!("{ENDINGS}?"), DIGITS, r"&&[^\p{Han}]", "");
            one(format!(r"[\p{{Han}}]+|{cased}"))
        }
        "deepseek-v3" | "joyai-llm" | "hunyuan-dense" => several(&[
            DIGITS,
            "[一-龥぀-ゟ゠-ヿ]+",
            &format!(
                r"{PUNCTUATION}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*{TAIL}"
            ),
        ]),
        "bailingmoe" | "bailingmoe2" | "llada-moe" => one(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
                .to_owned(),
        ),
        "seed-coder" => one(format!(
            r"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+{TAIL}"
        )),
        "falcon" => several(&[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
        "minicpm5" => several(&[DIGITS, &words(r"\p{N}+")]),
        _ => None,
    }
}
