#!/bin/bash
cd /workspace || exit 1
mv notes.txt poem.txt
