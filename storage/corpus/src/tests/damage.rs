//! A disk that fails: nothing is removed because it cannot be read, what is damaged is told, and the other collections go on.

use std::path::PathBuf;

use super::super::checks::Checks;
use super::super::verify::Pace;
use super::*;

const TABLE: &str = "passages-c.lance";

/// Two collections with some versions; the folder of the first.
async fn filled(folder: &Path) -> PathBuf {
    let corpus = open(folder).await;
    for number in 0..4 {
        upsert(&corpus, &[document(&format!("d{number}"), &format!("Granite bridge number {number}."))]).await;
    }
    corpus.upsert("other", vec![document("a", "Rye bread.")], &(), &|_| Ok(())).await.unwrap();
    folder.join(TABLE)
}

/// The files of a folder of the table, in order.
fn files(table: &Path, within: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![table.join(within)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            if entry.path().is_dir() { folders.push(entry.path()) } else { files.push(entry.path()) }
        }
    }
    files.sort();
    files
}

/// The newest version: LanceDB counts down.
fn newest(table: &Path) -> PathBuf {
    files(table, "_versions").into_iter().find(|file| file.extension().is_some_and(|end| end == "manifest")).unwrap()
}

fn flip(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    std::fs::write(path, bytes).unwrap();
}

fn cut(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
}

/// What a corpus says of `c`, whose documents are all there as soon as its files are.
async fn assert_told_and_kept(folder: &Path, case: &str) {
    let before = bytes_on_disk(&folder.join(TABLE));
    let corpus = open(folder).await;
    assert_eq!(bytes_on_disk(&folder.join(TABLE)), before, "{case}: something was removed");
    let listed = corpus.collections().await.unwrap();
    let [c, other] = &listed[..] else { panic!("{case}: {listed:?}") };
    assert!(c.name == "c" && c.damaged.is_some(), "{case}: {c:?}");
    assert_eq!((other.documents, &other.damaged), (1, &None), "{case}");
    assert_eq!(corpus.names().await, ["c", "other"]);
    let found = corpus.search("other", "rye bread", &SearchOptions::default()).await.unwrap();
    assert_eq!(found.len(), 1, "{case}");
    for error in [
        corpus.search("c", "granite", &SearchOptions::default()).await.unwrap_err(),
        corpus.upsert("c", vec![document("new", "New.")], &(), &|_| Ok(())).await.unwrap_err(),
        corpus.documents("c", 0, 9).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{case}: {error}");
        let text = error.to_string();
        assert!(text.contains("damaged") && text.contains("backup"), "{case}: {text}");
        assert!(!text.contains(&*folder.display().to_string()), "{case}: {text}");
    }
    let damages = corpus.damages();
    assert!(damages.len() == 1 && damages[0].what == "collection `c`", "{case}: {damages:?}");
    // What another collection shares with a deleted document, or may, keeps nobody from deleting.
    corpus.scan(Scope::default(), &mut |_| Ok(())).await.unwrap();
    corpus.retain_absent(&|_| true, &mut HashSet::from(["0f".to_owned()])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collection_whose_versions_cannot_be_read_is_kept_and_comes_back_with_them() {
    let folder = tempfile::tempdir().unwrap();
    let table = filled(folder.path()).await;
    let aside = folder.path().join("aside");
    std::fs::rename(table.join("_versions"), &aside).unwrap();
    assert_told_and_kept(folder.path(), "missing").await;
    // As where its folder cannot be opened: an error, and not "there is none".
    std::fs::write(table.join("_versions"), "").unwrap();
    assert_told_and_kept(folder.path(), "no folder").await;
    let corpus = open(folder.path()).await;
    corpus.documents("c", 0, 9).await.unwrap_err();
    std::fs::remove_file(table.join("_versions")).unwrap();
    std::fs::rename(&aside, table.join("_versions")).unwrap();
    assert_eq!(corpus.documents("c", 0, 9).await.unwrap().len(), 4, "it is looked at again");
    assert!(corpus.damages().is_empty());
    assert_eq!(find(&corpus, "granite", SearchMode::Fused, 9).await.len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_newest_version_is_told_and_no_older_one_is_taken_for_it() {
    for (case, damage) in [
        ("cut", &cut as &dyn Fn(&Path)),
        ("flipped", &flip),
        ("removed", &|path| std::fs::remove_file(path).unwrap()),
        ("emptied", &|path| std::fs::write(path, "").unwrap()),
    ] {
        for has_list in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let table = filled(folder.path()).await;
            if !has_list {
                // As an earlier version of ragstone left it: LanceDB itself sees that the file is no version.
                std::fs::remove_file(table.join("ragstone.checks")).unwrap();
                if case != "cut" && case != "emptied" {
                    continue;
                }
            }
            damage(&newest(&table));
            assert_told_and_kept(folder.path(), &format!("{case}, list {has_list}")).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_collection_can_be_deleted_and_begun_again() {
    let folder = tempfile::tempdir().unwrap();
    let table = filled(folder.path()).await;
    cut(&newest(&table));
    let corpus = open(folder.path()).await;
    assert_eq!(corpus.delete_collection("c", &()).await.unwrap(), 0);
    assert!(!table.exists() && corpus.damages().is_empty());
    assert_eq!(corpus.delete_collection("c", &()).await.unwrap_err().kind(), ErrorKind::NotFound);
    upsert(&corpus, &[document("again", "Granite bridge.")]).await;
    // One that is open and cannot be read, too.
    files(&table, "data").iter().for_each(|file| cut(file));
    let corpus = open(folder.path()).await;
    corpus.delete_collection("c", &()).await.unwrap();
    assert_eq!(corpus.names().await, ["other"]);
    assert!(!table.exists() && std::fs::read_dir(folder.path().join("deleted")).unwrap().next().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_data_file_is_one_collections_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let table = filled(folder.path()).await;
    let data = files(&table, "data");
    cut(&data[0]);
    let corpus = open(folder.path()).await;
    let check = corpus.verify(Pace::Fast, &mut |_| true).await.unwrap();
    let [damaged] = &check.damaged[..] else { panic!("{check:?}") };
    assert_eq!(damaged.collection, "c");
    assert!(damaged.file.starts_with("data/") && damaged.error.contains("bytes"), "{damaged:?}");
    let listed = corpus.collections().await.unwrap();
    assert!(listed[0].damaged.as_ref().unwrap().contains("backup"), "{listed:?}");
    assert_eq!((listed[1].documents, &listed[1].damaged), (1, &None));
    // Nothing of it says where the folder is.
    let whole = folder.path().display().to_string();
    if let Err(error) = corpus.documents("c", 0, 9).await {
        assert!(!error.to_string().contains(&whole), "{error}");
    }
    assert!(!listed[0].damaged.as_ref().unwrap().contains(&whole));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_is_primary_is_compared_with_its_checksum() {
    let folder = tempfile::tempdir().unwrap();
    let table = filled(folder.path()).await;
    let corpus = open(folder.path()).await;
    // Of two in one file: what is deleted is noted beside it.
    upsert(&corpus, &[document("stays", "Slate roof."), document("goes", "Tin roof.")]).await;
    corpus.delete("c", "goes", &()).await.unwrap();
    let verify = async |corpus: &Corpus| corpus.verify(Pace::Fast, &mut |_| true).await.unwrap();
    let whole = verify(&corpus).await;
    assert!(whole.damaged.is_empty() && whole.listed == 0 && whole.files > 6 && whole.bytes > 0, "{whole:?}");
    let needed: Vec<PathBuf> = [files(&table, "data"), files(&table, "_deletions"), vec![newest(&table)]].concat();
    for file in &needed {
        let bytes = std::fs::read(file).unwrap();
        flip(file);
        let check = verify(&corpus).await;
        assert_eq!(check.damaged.len(), 1, "{}: {check:?}", file.display());
        assert_eq!(corpus.damages().len(), 1);
        std::fs::remove_file(file).unwrap();
        assert_eq!(verify(&corpus).await.damaged[0].error, "is missing", "{}", file.display());
        std::fs::write(file, bytes).unwrap();
        assert!(verify(&corpus).await.damaged.is_empty() && corpus.damages().is_empty());
    }
    // What an earlier version of ragstone wrote is listed by the first comparison.
    std::fs::remove_file(table.join("ragstone.checks")).unwrap();
    let corpus = open(folder.path()).await;
    assert_eq!(verify(&corpus).await.listed as usize, needed.len() - 1, "the newest version was listed by the start");
    flip(&needed[0]);
    assert_eq!(verify(&corpus).await.damaged.len(), 1);
    let mut asked = 0;
    let mut stop = |_| {
        asked += 1;
        false
    };
    let check = corpus.verify(Pace::Fast, &mut stop).await.unwrap();
    assert_eq!((check.files, asked), (1, 1), "told to stop");
}

/// After an upgrade no file has a checksum: a deletion does not wait until all are read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_leaves_files_of_an_earlier_version_to_the_comparison() {
    let folder = tempfile::tempdir().unwrap();
    let table = filled(folder.path()).await;
    std::fs::remove_file(table.join("ragstone.checks")).unwrap();
    // A start lists the version that was acknowledged last.
    let acknowledged = newest(&table);
    let older: Vec<PathBuf> = files(&table, "").into_iter().filter(|file| *file != acknowledged).collect();
    let corpus = open(folder.path()).await;
    corpus.delete("c", "d0", &()).await.unwrap();
    let checks = Checks::read(&table).unwrap();
    let has = |file: &PathBuf| checks.has(file.strip_prefix(&table).unwrap().to_str().unwrap());
    assert!(has(&newest(&table)) && !older.iter().any(has), "{checks:?}");
    let check = corpus.verify(Pace::Fast, &mut |_| true).await.unwrap();
    assert!(check.listed > 0 && check.damaged.is_empty(), "{check:?}");
    let again = corpus.verify(Pace::Fast, &mut |_| true).await.unwrap();
    assert_eq!((again.listed, again.files >= check.listed), (0, true), "{again:?}");
}

/// The words are as many: LanceDB reads the file as it stands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_words_are_never_served() {
    let folder = tempfile::tempdir().unwrap();
    let table = filled(folder.path()).await;
    let mut changed = 0;
    for file in files(&table, "data") {
        let mut bytes = std::fs::read(&file).unwrap();
        let words = b"bridge number 2";
        let places: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(words)).collect();
        for at in places {
            bytes[at..at + 6].copy_from_slice(b"castle");
            changed += 1;
        }
        std::fs::write(&file, bytes).unwrap();
    }
    assert!(changed > 0, "the words are in no file as they are");
    let corpus = open(folder.path()).await;
    for mode in MODES {
        let found = find(&corpus, "granite bridge number 2", mode, 9).await;
        assert!(!found.contains(&"d2".to_owned()) && found.len() == 3, "{mode:?}: {found:?}");
    }
    let damages = corpus.damages();
    assert!(damages.len() == 1 && damages[0].found.contains("`d2`"), "{damages:?}");
    let error = corpus.document("c", "d2").await.unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("add the document again"), "{error}");
    corpus.document("c", "d1").await.unwrap();
    assert_eq!(corpus.verify(Pace::Fast, &mut |_| true).await.unwrap().damaged.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_index_is_built_anew_by_the_search_that_meets_it() {
    for damage in [&cut as &dyn Fn(&Path), &flip, &|path| std::fs::remove_file(path).unwrap()] {
        let folder = tempfile::tempdir().unwrap();
        let options = CorpusOptions { vector_index_rows: 300, ..CorpusOptions::default() };
        let table = folder.path().join(TABLE);
        {
            let corpus = open_with(folder.path(), ENCODER, options.clone()).await.unwrap();
            let many: Vec<Document> =
                (0..320).map(|n| document(&format!("d{n}"), &format!("Stone{n} by the river."))).collect();
            upsert(&corpus, &many).await;
        }
        files(&table, "_indices").iter().for_each(|file| damage(file));
        let corpus = open_with(folder.path(), ENCODER, options.clone()).await.unwrap();
        for mode in MODES {
            assert_eq!(find(&corpus, "stone7", mode, 1).await, ["d7"], "{mode:?}");
        }
        let mut stages = |_: Vec<Hit>| {};
        let staged = corpus.search_in_stages("c", "stone9", &SearchOptions::default(), true, &mut stages).await;
        assert_eq!(staged.unwrap().hits[0].passage.document_id, "d9");
        assert!(corpus.verify(Pace::Fast, &mut |_| true).await.unwrap().damaged.is_empty());
        drop(corpus);
        let corpus = open_with(folder.path(), ENCODER, options).await.unwrap();
        assert_eq!(find(&corpus, "stone7", SearchMode::FullText, 1).await, ["d7"], "also after a restart");
    }
}

/// A kill between the rename and the removal of the files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_deleted_does_not_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let table = filled(folder.path()).await;
    let deleted = folder.path().join("deleted");
    std::fs::create_dir(&deleted).unwrap();
    std::fs::rename(&table, deleted.join("passages-c.lance~0")).unwrap();
    let corpus = open(folder.path()).await;
    assert_eq!(corpus.names().await, ["other"]);
    assert!(!deleted.exists());
}
