//! Whatever a schema and a prompt say: refused, or laid out without overlaps, every module at its own positions in every prompt.

use super::build::unplaced;
use super::*;
use crate::fuzz::fuzz;

/// Between a schema and its prompt.
const CUT: &str = "\n---\n";

fn holds(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let Some((schema, prompt)) = text.split_once(CUT) else { return false };
    let (Ok(layout), Ok(prompt)) = (lay(schema), Prompt::parse(prompt)) else { return false };
    written_and_read(schema, &prompt);
    check(&layout.top);
    let Ok(selected) = select(&layout, &prompt, Some(&roles()), &Bytes, MOST) else { return false };
    for pair in selected.placed.windows(2) {
        assert!(pair[0].end() <= pair[1].start, "{selected:?}");
    }
    let again = select(&layout, &prompt, Some(&roles()), &Bytes, MOST).expect("as before");
    assert_eq!(again, selected);
    for placed in &selected.placed {
        assert!(!placed.tokens.is_empty() && placed.end() <= MOST, "{placed:?}");
        if let PlacedFrom::Module { path, .. } = &placed.from {
            assert!(has_text(&layout.top, path, placed.start, &placed.tokens), "{path} at {}", placed.start);
        }
    }
    true
}

/// What is written is read as the same.
fn written_and_read(schema: &str, prompt: &Prompt) {
    let schema = Schema::parse(schema, &()).expect("it was laid out");
    match Schema::parse(&schema.to_xml(), &()) {
        Ok(again) => assert_eq!(again, schema),
        // What needs an escape is longer than where it stood as CDATA.
        Err(error) => assert!(error.to_string().contains("bytes"), "{error}"),
    }
    let xml = prompt.to_xml();
    match Prompt::parse(&xml) {
        Ok(again) => assert_eq!((unplaced(&again), again.to_xml()), (unplaced(prompt), xml)),
        Err(error) => assert!(error.to_string().contains("bytes"), "{error}"),
    }
}

/// Parts follow each other without gaps or overlaps.
fn check(block: &Block) {
    let mut at = block.start;
    for part in &block.parts {
        assert_eq!(part.start(), at, "{block:?}");
        at += match part {
            Part::Text { tokens, .. } => tokens.len() as u32,
            Part::Parameter { length, scaffold, .. } => {
                assert_eq!(scaffold.len() as u32, *length);
                *length
            }
            Part::Module(inner) => {
                check(inner);
                inner.length
            }
            Part::Union { members, length, start, .. } => {
                members.iter().for_each(check);
                assert!(members.iter().all(|member| member.start == *start && member.length <= *length));
                *length
            }
        };
    }
    assert_eq!(at, block.start + block.length);
}

/// Whether the module at `path` has this text there.
fn has_text(top: &Block, path: &str, start: u32, tokens: &[u32]) -> bool {
    let mut block = top;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let inner = block.parts.iter().find_map(|part| match part {
            Part::Module(inner) => (inner.name == name).then_some(inner),
            Part::Union { members, .. } => members.iter().find(|member| member.name == name),
            Part::Text { .. } | Part::Parameter { .. } => None,
        });
        let Some(inner) = inner else { return false };
        block = inner;
    }
    block
        .parts
        .iter()
        .any(|part| matches!(part, Part::Text { start: its, tokens: all } if *its == start && **all == *tokens))
}

#[test]
fn any_schema_and_prompt_are_refused_or_laid_out() {
    let prompts = [
        "<prompt schema='trip'><for days='3 days'/><rome/> Where? </prompt>",
        "<prompt schema='trip'><oslo/>and<late/><user>Why?</user><assistant>So.</assistant><user>And?</user></prompt>",
    ];
    let nested = "<schema name='n'><scaffold modules='a,b'/><system>Be brief.</system><user><module name='a'>x<union scaffold='c'><module name='c'>see \
        <param name='p' len='9' scaffold='so'/></module><module name='d'>d</module></union> </module><module name='b'>&lt;b&gt;</module></user></schema>";
    let mut seeds: Vec<Vec<u8>> = prompts.iter().map(|prompt| format!("{TRIP}{CUT}{prompt}").into_bytes()).collect();
    seeds.push(format!("{nested}{CUT}<prompt schema='n'><a>1<c p='four'/>2</a><b/>3</prompt>").into_bytes());
    fuzz("pml", &seeds, holds);
}
