#!/bin/bash
cd /workspace || exit 1
grep karin draft.txt > agenda.txt
