// A question to the broker.

// Return the answer, whose body may still be on its way. A refusal is thrown, with the broker's reason.
export async function ask(url, options) {
  const answer = await fetch(url, options);
  if (answer.ok) return answer;
  const said = await answer.json().catch((failure) => {
    if (failure.name === "AbortError") throw failure;
    return {};
  });
  throw new Error(said.reason || `The broker answered with the status ${answer.status}.`);
}
