//! Beside the layouts that the reference implementation makes of its own examples: `RAGSTONE_PML_REFERENCE=FOLDER` names a folder with
//! `reference_layout.json` and the files that it speaks of. Nothing here is tuned to them; docs/results/pml.md has what came out.

use std::path::PathBuf;

use serde_json::Value;

use super::*;

/// The role table of the reference: Llama 2's, an empty text for a user, who ends the system prompt's turn.
fn reference_roles() -> Roles {
    let pair = |open: &str, close: &str| (open.to_owned(), close.to_owned());
    Roles {
        system: pair("<s> [INST] <<SYS>>\n", "<</SYS>>\n\n"),
        user: pair("", "[/INST]"),
        assistant: pair("", "</s><s> [INST] "),
        user_after_system: String::new(),
        answer: String::new(),
    }
}

/// Every module and parameter with its place and length.
fn ours(block: &Block, path: &str, into: &mut Vec<(String, u32, u32)>) {
    for part in &block.parts {
        match part {
            Part::Text { .. } => {}
            Part::Parameter { start, length, name, .. } => into.push((format!("{path}/{name}"), *start, *length)),
            Part::Module(inner) => {
                into.push((format!("{path}/{}", inner.name), inner.start, inner.length));
                ours(inner, &format!("{path}/{}", inner.name), into);
            }
            Part::Union { members, .. } => {
                for member in members {
                    into.push((format!("{path}/{}", member.name), member.start, member.length));
                    ours(member, &format!("{path}/{}", member.name), into);
                }
            }
        }
    }
}

fn theirs(node: &Value, path: &str, into: &mut Vec<(String, u32, u32)>) {
    for child in node["children"].as_array().into_iter().flatten() {
        let number = |key: &str| child[key].as_u64().unwrap() as u32;
        let name = child["name"].as_str().map_or_else(|| path.to_owned(), |name| format!("{path}/{name}"));
        if name != path {
            into.push((name.clone(), number("offset"), number("len")));
        }
        theirs(child, &name, into);
    }
}

#[test]
#[ignore = "needs RAGSTONE_PML_REFERENCE, the reference implementation's examples and layouts"]
fn examples_are_laid_out_as_the_reference_does() {
    let folder = PathBuf::from(std::env::var("RAGSTONE_PML_REFERENCE").expect("RAGSTONE_PML_REFERENCE is not set"));
    let layouts = std::fs::read_to_string(folder.join("reference_layout.json")).expect("its layouts");
    let layouts: Value = serde_json::from_str(&layouts).expect("JSON");
    for (file, wanted) in layouts["schemas"].as_object().expect("schemas") {
        let text = std::fs::read_to_string(folder.join(file)).expect("the example");
        let laid =
            Schema::parse(&text, &()).and_then(|schema| Layout::of(&schema, Some(&reference_roles()), &Bytes, 1 << 20));
        let layout = match laid {
            Ok(layout) => layout,
            Err(error) => {
                println!("{file}: refused: {error}");
                continue;
            }
        };
        let (mut found, mut reference) = (Vec::new(), Vec::new());
        ours(&layout.top, "", &mut found);
        theirs(wanted, "", &mut reference);
        let differing = found.iter().zip(&reference).filter(|(own, other)| own != other).count();
        println!(
            "{file}: {} modules and parameters, {} there, {differing} differ; {} positions, {} there",
            found.len(),
            reference.len(),
            layout.length(),
            wanted["len"]
        );
        for (own, other) in found.iter().zip(&reference).filter(|(own, other)| own != other).take(3) {
            println!("    {own:?}, there {other:?}");
        }
    }
    let travel = std::fs::read_to_string(folder.join("examples/parameterized_prompts.xml")).expect("the example");
    let schema = Schema::parse(&travel, &()).unwrap();
    let layout = Layout::of(&schema, Some(&reference_roles()), &Bytes, 1 << 20).unwrap();
    for case in layouts["prompts"].as_array().expect("prompts") {
        let prompt = Prompt::parse(case["prompt"].as_str().expect("a prompt"));
        let selected = prompt.and_then(|prompt| select(&layout, &prompt, Some(&reference_roles()), &Bytes, 1 << 20));
        let ours = selected.map(|selected| {
            let range = |at: &Placed| (at.start, at.end() - 1);
            let is_kept = |at: &&Placed| matches!(at.from, PlacedFrom::Module { .. });
            let kept: Vec<_> = selected.placed.iter().filter(is_kept).map(range).collect();
            let new: Vec<_> = selected.placed.iter().filter(|at| !is_kept(at)).map(range).collect();
            format!("kept {kept:?}, new {new:?}")
        });
        println!(
            "{}: {ours:?}\n    there kept {}, new {}, error {}",
            case["case"], case["cached_ranges"], case["new_ranges"], case["error"]
        );
    }
}
