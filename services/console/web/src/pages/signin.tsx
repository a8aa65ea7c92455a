import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { link, signedIn, signIn } from "../session";
import { Head, sentence } from "../ui/bits";
import { useTitle } from "../view";

/** Asks for the token that the services want. It stays in this tab and goes nowhere but to the console's server. */
export function SignIn(): VNode {
  useTitle("Sign in");
  const input = useRef<HTMLInputElement>(null);
  const l = link.value;
  useEffect(() => input.current?.focus(), []);
  const submit = (e: Event) => {
    e.preventDefault();
    const token = input.current!.value.trim();
    if (token) signIn(token);
  };
  return (
    <div class="signin">
      <Head title="Sign in" />
      {l.is === "signed-out" && l.why && signedIn() && <p class="note failing" role="alert"><strong>The token was refused.</strong> {sentence(l.why)}</p>}
      <form onSubmit={submit}>
        <label class="field">Bearer token
          <input ref={input} type="password" name="token" autocomplete="off" required aria-describedby="token-help" />
        </label>
        <p id="token-help" class="quiet">
          The services decide by it what you may see and do. It is kept until this tab is closed. On Kubernetes,
          {" "}<code>kubectl create token SERVICEACCOUNT</code> makes one.
        </p>
        <button type="submit" class="primary">Sign in</button>
      </form>
    </div>
  );
}
