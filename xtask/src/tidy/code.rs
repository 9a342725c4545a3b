//! The words of Rust source, without its comments and literals.

use std::str::FromStr;

use proc_macro2::{Delimiter, LexError, TokenStream, TokenTree};

/// An identifier, a mark such as `!`, or the mark that opens a group.
#[derive(Debug, PartialEq)]
pub(super) struct Word {
    pub(super) text: String,
    /// Counted from 1.
    pub(super) line: usize,
}

/// All words of a file, in order.
pub(super) fn words(source: &str) -> Result<Vec<Word>, LexError> {
    let mut words = Vec::new();
    flatten(TokenStream::from_str(source)?, &mut words);
    Ok(words)
}

fn flatten(stream: TokenStream, words: &mut Vec<Word>) {
    for tree in stream {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Group(group) => {
                let open = match group.delimiter() {
                    Delimiter::Brace => "{",
                    Delimiter::Parenthesis => "(",
                    Delimiter::Bracket => "[",
                    Delimiter::None => "",
                };
                words.push(Word { text: open.to_owned(), line });
                flatten(group.stream(), words);
            }
            TokenTree::Literal(_) => {}
            other => words.push(Word { text: other.to_string(), line }),
        }
    }
}
