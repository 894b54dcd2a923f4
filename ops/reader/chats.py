"""Ordinary chats, answered by the model as it is: training keeps to these, so that it does not lose its conversation."""

import json

import torch

PROMPTS = """\
Hello! How are you today?
Write a short poem about autumn.
Explain what a prime number is to a child.
Give me three ideas for a birthday present for a friend who likes to cook.
What is the difference between weather and climate?
Write a Python function that adds two numbers.
Tell me a joke about a programmer.
Summarize why sleep is important.
Translate "good morning" into Spanish.
Write an e-mail to my landlord that the tap drips.
What are the three states of matter?
Who was Marie Curie?
How do I make a paper plane?
Give me a list of five fruits.
Write the beginning of a story about a lost dog.
How does a bicycle stay upright?
Rewrite this sentence politely: Send me the file now.
What is the capital of Italy, and what is it known for?
I feel tired at work. What can I do?
Explain photosynthesis in two sentences.
Suggest a name for a small cafe by the sea.
What does the word "serendipity" mean?
How do I boil an egg?
Write a haiku about snow.
List the planets of the solar system.
Why is the sky blue?
What should I pack for a weekend in the mountains?
Describe a sunset over a harbour.
What is a loop in programming?
Correct the grammar: He go to school every days.
How can I learn a language faster?
What is the purpose of a heart valve?
Give me a plan for a thirty minute workout.
What is the difference between a frog and a toad?
Write a short thank-you note to a teacher.
Compare tea and coffee.
What is inflation?
How many legs has a spider, and why is it not an insect?
Invent a superhero and describe her powers.
What are the advantages of trains over planes?""".splitlines()
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@torch.no_grad()
def replies(source, tokenizer, path, tokens=64):
    """`{"prompt", "reply"}` of each: the prompt's text, and the token ids of what the model says, greedily. Kept in `path`."""
    if path.exists():
        return json.loads(path.read_text())
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    form = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    prompts = [form.format(SYSTEM, text) for text in PROMPTS]
    tokenizer.padding_side, tokenizer.pad_token_id = "left", end
    inputs = tokenizer(prompts, add_special_tokens=False, return_tensors="pt", padding=True)
    begin = inputs.input_ids.shape[1]
    out = source.generate(**inputs, max_new_tokens=tokens, do_sample=False, eos_token_id=end, pad_token_id=end)[:, begin:].tolist()
    # What ended early has its end, once.
    said = [words[: words.index(end) + 1] if end in words else words for words in out]
    chats = [{"prompt": prompt, "reply": words} for prompt, words in zip(prompts, said)]
    path.write_text(json.dumps(chats))
    return chats
