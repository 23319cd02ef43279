"""`diana completion`: tab completion for the shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes the shell complete verbs and options.

    bash: add `eval "$(diana completion bash)"` to ~/.bashrc. zsh: the same with zsh in ~/.zshrc.
    fish: diana completion fish > ~/.config/fish/completions/diana.fish
    """
    made = get_completion_class(shell)
    if made is None:
        raise click.ClickException(f"no completion for {shell}")
    click.echo(made(context.find_root().command, {}, "diana", "_DIANA_COMPLETE").source())
